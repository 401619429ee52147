package haproxycfg

import (
	"fmt"
	"strings"
)

// Line is a line of a configuration that says something.
type Line struct {
	File   string
	Number int // from 1
	// Section is the keyword of the section it stands in, also of the line that begins
	// it; empty before the first.
	Section string
	// Words are divided as HAProxy does. In a line with something that is not understood
	// here, such as a variable, they are divided by blanks, quotes and all.
	Words []string
	// Conditional: it stands below an .if, so it may count or not.
	Conditional bool
}

// At is file:line.
func (l Line) At() string { return fmt.Sprintf("%s:%d", l.File, l.Number) }

// Begins reports whether the line begins with these words.
func (l Line) Begins(words ...string) bool {
	if len(l.Words) < len(words) {
		return false
	}
	for i, w := range words {
		if l.Words[i] != w {
			return false
		}
	}
	return true
}

// Lines reads a configuration line by line. Unlike Parse it never refuses one.
func Lines(file string, text []byte) (all []Line) {
	section, number, depth := "", 0, 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		w, err := words(line)
		if err != nil {
			line, _, _ = strings.Cut(line, "#")
			w = strings.Fields(line)
		}
		if len(w) == 0 {
			continue
		}
		switch {
		case w[0] == ".if":
			depth++
		case w[0] == ".endif":
			depth--
		case sections[w[0]]:
			section = w[0]
		}
		all = append(all, Line{File: file, Number: number, Section: section, Words: w, Conditional: depth > 0})
	}
	return all
}
