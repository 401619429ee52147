package agentcheck

import (
	"strconv"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxLine is the longest answer with its line end. HAProxy keeps 127 bytes of
// "via agent : word (description)" and cuts the rest.
const maxLine = 100

// nodeLine returns the answer for a node, nil when it is undecided.
func nodeLine(v topology.NodeVerdict) []byte {
	r := v.Reason()
	switch v.Verdict {
	case topology.Up:
		// A weight of 0 would be a drain that nobody decided.
		word := "up " + strconv.Itoa(min(max(v.Weight, 1), 100)) + "%"
		if r.Code.Info().Severity == topology.SeverityOK {
			return line(word, "")
		}
		return line(word, reasonText(r))
	case topology.Drain:
		return line("up 0%", reasonText(r))
	case topology.Down:
		return line("down", reasonText(r))
	default:
		return nil
	}
}

// guardLine returns the answer for a pool's guard server, nil when it is
// undecided.
func guardLine(v topology.Verdict, p topology.PoolVerdicts) []byte {
	switch v {
	case topology.Down:
		return line("down", "open: "+p.Up()[0].Node+" is up")
	case topology.Up:
		return line("up 100%", "shut: no node is up")
	default:
		return nil
	}
}

func reasonText(r topology.Reason) string {
	if r.Text == "" {
		return string(r.Code)
	}
	return r.Text
}

// line makes an answer. The comment is a word of its own that begins with '#':
// HAProxy takes "down#x" for an unknown word and leaves the server up.
func line(words, comment string) []byte {
	b := make([]byte, 0, len(words)+len(comment)+3)
	b = append(b, words...)
	if comment != "" {
		b = append(b, " #"...)
		b = appendComment(b, comment)
	}
	return append(b, '\n')
}

// appendComment appends text so that it stays one comment on one line: printable
// ASCII, no comma (a separator to HAProxy), no further '#', blanks not doubled.
func appendComment(b []byte, text string) []byte {
	for _, r := range text {
		if len(b) == maxLine-1 {
			break
		}
		switch {
		case r == ',':
			r = ';'
		case r == '#':
			r = '.'
		case r == '\n', r == '\r', r == '\t':
			r = ' '
		case r < ' ' || r > '~':
			r = '?'
		}
		if r == ' ' && (b[len(b)-1] == ' ' || b[len(b)-1] == '#') {
			continue
		}
		b = append(b, byte(r))
	}
	return b
}
