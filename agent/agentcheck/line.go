package agentcheck

import (
	"strconv"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxLine is the longest answer with its line end. HAProxy keeps 127 bytes of
// "via agent : word (description)" and cuts the rest.
const maxLine = 100

// AdminWords says whether answers hold HAProxy's administrative words.
type AdminWords bool

const (
	// AdminNever sends none: a drain is "up 0%", and what an operator sets stays.
	AdminNever AdminWords = false
	// AdminAlways sends one in every answer, which so undoes whatever was set before,
	// an operator's MAINT too. A node that is out without anything being wrong, such
	// as a standby in a write pool, is shown as MAINT and not as DOWN.
	AdminAlways AdminWords = true
)

// up takes new sessions, with a weight in percent.
func (a AdminWords) up(weight int) string {
	word := "up " + strconv.Itoa(weight) + "%"
	if a {
		return "ready " + word
	}
	return word
}

// drain keeps sessions and takes no new ones.
func (a AdminWords) drain() string {
	if a {
		return "drain up 100%"
	}
	return "up 0%"
}

// down takes no sessions. It holds the health word in every form: when HAProxy's
// MAINT is lifted by hand, the server must still be down.
func (a AdminWords) down(s topology.Severity) string {
	switch {
	case !bool(a):
		return "down"
	case s == topology.SeverityOK || s == topology.SeverityInfo:
		return "maint down"
	}
	return "ready down"
}

// nodeLine returns the answer for a node, nil when it is undecided.
func nodeLine(v topology.NodeVerdict, a AdminWords) []byte {
	r := v.Reason()
	severity := r.Code.Info().Severity
	switch v.Verdict {
	case topology.Up:
		// A weight of 0 would be a drain that nobody decided.
		word := a.up(min(max(v.Weight, 1), 100))
		if severity == topology.SeverityOK {
			return line(word, "")
		}
		return line(word, reasonText(r))
	case topology.Drain:
		return line(a.drain(), reasonText(r))
	case topology.Down:
		return line(a.down(severity), reasonText(r))
	default:
		return nil
	}
}

// guardLine returns the answer for a pool's guard server, nil when it is
// undecided.
func guardLine(v topology.Verdict, p topology.PoolVerdicts, a AdminWords) []byte {
	switch v {
	case topology.Down:
		return line(a.down(topology.SeverityError), "open: "+p.Up()[0].Node+" is up")
	case topology.Up:
		return line(a.up(100), "shut: no node is up")
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
