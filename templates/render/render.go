package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

// maxBytes is the longest text that a template may make.
const maxBytes = 8 << 20

// Template is the source of one file.
type Template struct {
	// Name stands in errors: the file's name as the operator knows it.
	Name string
	Text string
	// LeftDelim and RightDelim replace "{{" and "}}" when set.
	LeftDelim, RightDelim string
	// Partials are further templates, for include and template, by their names.
	Partials []Template
}

// Render makes the text of one file. The error is of type *Error when the
// template is to blame, and the list of View.Check when the view is.
func Render(t Template, v View) ([]byte, error) {
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("template %s was not rendered: %w", t.Name, err)
	}
	first, err := once(t, v)
	if err != nil {
		return nil, err
	}
	second, err := once(t, v)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		line := differsAt(first, second)
		return nil, &Error{Template: t.Name, Text: fmt.Sprintf("two renderings of the same view differ in line %d of the text: "+
			"the template is not a pure function", line)}
	}
	return first, inspect(t, first)
}

// Check reports whether a template can be parsed and calls known functions only.
func Check(t Template) error {
	_, err := parse(t)
	return err
}

func parse(t Template) (*template.Template, error) {
	set := template.New(t.Name)
	set.Delims(t.LeftDelim, t.RightDelim).Option("missingkey=error").Funcs(functions(set))
	for _, p := range append([]Template{t}, t.Partials...) {
		one := set
		if p.Name != t.Name {
			one = set.New(p.Name)
		}
		if _, err := one.Parse(p.Text); err != nil {
			return nil, describe(t, err)
		}
	}
	return set, nil
}

func once(t Template, v View) ([]byte, error) {
	set, err := parse(t)
	if err != nil {
		return nil, err
	}
	w := limited{left: maxBytes}
	if err := set.Execute(&w, v.clone()); err != nil {
		return nil, describe(t, err)
	}
	return w.b.Bytes(), nil
}

// clone copies what a template could write into.
func (v View) clone() View {
	v.Clusters = slices.Clone(v.Clusters)
	for i, c := range v.Clusters {
		v.Clusters[i].Pools = slices.Clone(c.Pools)
		for j, p := range c.Pools {
			v.Clusters[i].Pools[j].Servers = slices.Clone(p.Servers)
		}
	}
	return v
}

// inspect refuses texts that no program should be given.
func inspect(t Template, text []byte) error {
	for bad, why := range map[string]string{
		"<no value>": `the text has "<no value>": a value that the template uses does not exist`,
		"\x00":       "the text has a NUL byte",
	} {
		if before, _, found := bytes.Cut(text, []byte(bad)); found {
			line := 1 + bytes.Count(before, []byte("\n"))
			return &Error{Template: t.Name, Text: fmt.Sprintf("%s (line %d of the text)", why, line)}
		}
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return &Error{Template: t.Name, Text: "the text is empty"}
	}
	return nil
}

func differsAt(a, b []byte) int {
	la, lb := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return i + 1
		}
	}
	return min(len(la), len(lb)) + 1
}

var errTooLong = errors.New("the text is longer than 8 MiB")

// limited is a buffer that refuses to grow beyond a size.
type limited struct {
	b    bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errTooLong
	}
	return l.b.Write(p)
}
