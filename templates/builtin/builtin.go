// Package builtin holds the templates that come with pgsteer.
//
// Guarantees: the texts are part of the program and the same for every run. They
// read the view of package render and nothing else. But for PgBouncer's, which names
// who serves since it has no checks, they hold no verdict: what they render changes
// with nodes and settings, never with a role.
package builtin

import (
	"embed"
	"slices"
	"strings"
)

//go:embed *.tmpl
var files embed.FS

// HAProxy is the name of the template for haproxy.cfg. It needs HAProxy 2.2 or
// newer, one listen address at least, and an agent-check listener.
const HAProxy = "haproxy.cfg"

// PgBouncer is the name of the template for the section [databases] of one PgBouncer,
// with one host for each entry: another host in a list would drop the connections to
// all of it (PgBouncer issue 1536). It needs a view that names who serves.
const PgBouncer = "pgbouncer.ini"

const suffix = ".tmpl"

// Text returns the template of a name, and false when there is none.
func Text(name string) (string, bool) {
	b, err := files.ReadFile(name + suffix)
	return string(b), err == nil
}

// Names returns the names of all built-in templates, sorted.
func Names() []string {
	entries, _ := files.ReadDir(".") // an embedded folder can always be read
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), suffix))
	}
	slices.Sort(names)
	return names
}
