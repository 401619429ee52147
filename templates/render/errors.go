package render

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/near"
)

// Error is a fault of a template. Line and Column count from 1 and are zero when
// the fault is in the text as a whole.
type Error struct {
	Template     string
	Line, Column int
	Text         string
}

// Error writes name:line:column: text.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("template %s: %s", e.Template, e.Text)
	}
	return fmt.Sprintf("template %s:%d:%d: %s", e.Template, e.Line, e.Column, e.Text)
}

// position is how text/template begins its messages. Names may hold colons, so
// the number nearest to the text counts.
var position = regexp.MustCompile(`(?s)^template: (.*?):(\d+)(?::(\d+))?: (.*)$`)

var undefined = regexp.MustCompile(`^function "([^"]*)" not defined$`)

// describe turns an error of text/template into ours. Parse errors come without
// a column; it is that of the unknown function or of the line's first action.
func describe(t Template, err error) error {
	m := position.FindStringSubmatch(err.Error())
	if m == nil {
		return &Error{Template: t.Name, Text: err.Error()}
	}
	e := &Error{Template: m[1], Text: m[4]}
	e.Line, _ = strconv.Atoi(m[2])
	mark := cmp.Or(t.LeftDelim, "{{")
	if f := undefined.FindStringSubmatch(e.Text); f != nil {
		mark = f[1]
		e.Text += suggestion(f[1])
	}
	if m[3] != "" {
		column, _ := strconv.Atoi(m[3])
		e.Column = column + 1
		return e
	}
	e.Column = 1 + max(0, strings.Index(lineOf(t, e.Template, e.Line), mark))
	return e
}

func lineOf(t Template, name string, line int) string {
	for _, p := range append([]Template{t}, t.Partials...) {
		if lines := strings.Split(p.Text, "\n"); p.Name == name && line >= 1 && line <= len(lines) {
			return lines[line-1]
		}
	}
	return ""
}

// suggestion names the functions that look like an unknown one, or says why a
// function that sprig has is not offered here.
func suggestion(name string) string {
	if slices.Contains(denied, name) {
		return " (not offered: it is no pure function of its arguments)"
	}
	var alike []string
	for f := range maps.Keys(functions(nil)) {
		if near.Distance(strings.ToLower(f), strings.ToLower(name)) <= 1+len(name)/5 {
			alike = append(alike, f)
		}
	}
	if len(alike) == 0 {
		return ""
	}
	slices.Sort(alike)
	return ", did you mean " + strings.Join(alike, " or ") + "?"
}
