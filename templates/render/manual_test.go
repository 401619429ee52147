package render

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// names lists what a template can ask of a value: fields, and methods without
// arguments.
func names(prefix string, v reflect.Type) (all []string) {
	for _, m := range reflect.VisibleFields(v) {
		name := prefix + "." + m.Name
		all = append(all, name)
		switch {
		case m.Type.Kind() == reflect.Slice && m.Type.Elem().PkgPath() == v.PkgPath():
			all = append(all, names(name+"[]", m.Type.Elem())...)
		case m.Type.Kind() == reflect.Struct && m.Type.PkgPath() == v.PkgPath():
			all = append(all, names(name, m.Type)...)
		}
	}
	for m := range v.Methods() {
		if m.Type.NumIn() == 1 && m.Name != "Check" { // Check is ours: it gives errors
			all = append(all, prefix+"."+m.Name)
		}
	}
	return all
}

// TestManual holds docs/templates.md against the view and the functions.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	documented := func(pattern string) (words []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(page, -1) {
			words = append(words, m[1])
		}
		slices.Sort(words)
		return slices.Compact(words)
	}
	views := append(documented("(?m)^\\| `(\\.[^`]+)` \\|"), documented("`(\\.Options\\.[A-Za-z]+)`")...)
	same(t, "the view", names("", reflect.TypeFor[View]()), views)

	_, sprig, found := strings.Cut(page, "is an error:\n\n")
	if !found {
		t.Fatal("the page has no list of sprig's functions")
	}
	have := documented("(?m)^\\| `([a-zA-Z]+)[ `]")
	for word := range strings.FieldsSeq(sprig) {
		have = append(have, strings.Trim(word, "`,."))
	}
	same(t, "functions", Functions(), have)
}

func same(t *testing.T, what string, want, got []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s: %s is not documented", what, w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s: %s is documented and does not exist", what, g)
		}
	}
}
