package config

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	// File is the name of the text, or the flag that was given instead.
	File string
	// Line and Column count from 1, columns in characters. Both are zero for a
	// fault that stands nowhere, such as one of a flag.
	Line, Column int
	// Text says what is wrong and what would be right.
	Text string
	// Source is the line it stands on.
	Source string
}

// String writes file:line:column: text.
func (f Fault) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Text)
}

// Excerpt returns the source line with a mark below the fault, two lines for a
// terminal; empty when there is none to show.
func (f Fault) Excerpt() string {
	if f.Line == 0 {
		return ""
	}
	// Tabs are repeated, so that the mark stands below whatever they expand to.
	indent := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, firstRunes(f.Source, f.Column-1))
	number := fmt.Sprintf("%5d", f.Line)
	return fmt.Sprintf("%s | %s\n%*s | %s^\n", number, f.Source, len(number), "", indent)
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n <= 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// Faults is every fault of a file, in the order of the file. It is the
// error of Load, Parse and Decode.
type Faults struct{ List []Fault }

// Error writes one fault a line.
func (f *Faults) Error() string {
	lines := make([]string, len(f.List))
	for i, fault := range f.List {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// Detail writes every fault with its excerpt, for a terminal.
func (f *Faults) Detail() string {
	var b strings.Builder
	for _, fault := range f.List {
		b.WriteString(fault.String() + "\n" + fault.Excerpt())
	}
	return b.String()
}

// mark is a position in the text; zero: nowhere.
type mark struct{ line, column int }

// maxFaults bounds what is reported: who has more must begin with those.
const maxFaults = 1000

// collector gathers the faults of one text.
type collector struct {
	file  string
	text  []byte
	lines []string // of text, once there is a fault
	found []Fault
}

func newCollector(file string, text []byte) *collector {
	// A byte order mark says nothing in UTF-8, and the parser does not count it.
	return &collector{file: file, text: bytes.TrimPrefix(text, []byte("\ufeff"))}
}

func (c *collector) add(at mark, text string) {
	if len(c.found) == maxFaults {
		return
	}
	f := Fault{File: c.file, Text: text}
	if at.line > 0 {
		if c.lines == nil {
			c.lines = splitLines(string(c.text[:min(len(c.text), maxText)]))
		}
		f.Line = min(at.line, len(c.lines))
		f.Source = c.lines[f.Line-1]
		// One past the end is where the parser missed something.
		f.Column = max(1, min(at.column, utf8.RuneCountInString(f.Source)+1))
	}
	c.found = append(c.found, f)
}

// hide keeps what follows the first n characters of the newest fault out of its
// source line, since a secret may stand there. Nothing happens when the newest
// fault stands elsewhere.
func (c *collector) hide(at mark, n int) {
	if len(c.found) == 0 {
		return
	}
	if last := &c.found[len(c.found)-1]; last.Line == at.line && last.Column == at.column {
		last.Source = firstRunes(last.Source, last.Column-1+n) + "****"
	}
}

// err returns the faults in order, each once, or nil.
func (c *collector) err() error {
	if len(c.found) == 0 {
		return nil
	}
	list := slices.Clone(c.found)
	slices.SortStableFunc(list, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	list = slices.Compact(list)
	if len(c.found) == maxFaults {
		list[len(list)-1].Text += fmt.Sprintf(" (there are more than %d faults, later ones are not shown)", maxFaults)
	}
	return &Faults{List: list}
}

// splitLines cuts where YAML breaks lines. There is always at least one line.
func splitLines(s string) []string {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(s)
	lines := strings.Split(s, "\n")
	if n := len(lines); n > 1 && lines[n-1] == "" {
		lines = lines[:n-1]
	}
	return lines
}

// path is where a value stands below the root: keys and indexes of lists,
// joined by a byte that no key holds.
type path string

const pathSeparator = "\x00"

func (p path) child(key string) path {
	if p == "" {
		return path(key)
	}
	return p + pathSeparator + path(key)
}

func (p path) parent() path {
	i := strings.LastIndex(string(p), pathSeparator)
	return p[:max(i, 0)]
}

func (p path) String() string { return strings.ReplaceAll(string(p), pathSeparator, ".") }
