package haproxycfg

import (
	"errors"
	"fmt"
	"strings"
)

// words splits a line as HAProxy does. What depends on the environment, and
// escapes that are written in no file of ours, are errors.
func words(line string) (out []string, err error) {
	var word strings.Builder
	inWord := false
	end := func() {
		if inWord {
			out = append(out, word.String())
		}
		word.Reset()
		inWord = false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t':
			end()
			continue
		case '#':
			end()
			return out, nil
		case '\'':
			n := strings.IndexByte(line[i+1:], '\'')
			if n < 0 {
				return nil, errors.New("a quote has no end")
			}
			word.WriteString(line[i+1 : i+1+n])
			i += n + 1
		case '"':
			n, err := quoted(&word, line[i+1:])
			if err != nil {
				return nil, err
			}
			i += n
		case '\\':
			if i++; i == len(line) || !strings.ContainsRune(` \#"'`, rune(line[i])) {
				return nil, errors.New("an escape that is not known here")
			}
			word.WriteByte(line[i])
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	end()
	return out, nil
}

// quoted reads the rest of a text in double quotes and returns its length, the
// quote at its end included.
func quoted(word *strings.Builder, rest string) (int, error) {
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '"':
			return i + 1, nil
		case '$':
			return 0, errors.New("a variable")
		case '\\':
			if i++; i == len(rest) {
				return 0, errors.New("a quote has no end")
			}
			switch c := rest[i]; c {
			case 'n':
				word.WriteByte('\n')
			case '\\', '"', '#', '$':
				word.WriteByte(c)
			default:
				return 0, fmt.Errorf(`the escape \%c is not known here`, c)
			}
		default:
			word.WriteByte(rest[i])
		}
	}
	return 0, errors.New("a quote has no end")
}
