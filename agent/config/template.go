package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v4"
)

// Template is a group of files that one reload makes live together.
type Template struct {
	Name     string   `yaml:"name"`
	Files    []File   `yaml:"files"`
	Clusters []string `yaml:"clusters"` // empty: all
	Vars     vars     `yaml:"vars"`     // the operator's own values for templates
	// Check is run on the staged files, Reload after they were replaced. Both
	// are argument lists; no shell is involved. Empty: not done.
	Check  []string `yaml:"check" type:"arguments"`
	Reload []string `yaml:"reload" type:"arguments"`
	// ReloadUnit is a unit of systemd that is reloaded over D-Bus, instead of Reload.
	ReloadUnit string `yaml:"reload_unit"`
	// MasterSocket is the CLI of HAProxy's master process (-S): with it a reload
	// counts once a new worker has appeared and stayed.
	MasterSocket string `yaml:"master_socket" type:"path"`
	// Runtime has changes of servers alone made in the running HAProxy, over
	// HAProxy.Sockets, instead of a reload.
	Runtime bool `yaml:"runtime"`
	// Preflight has tried before a reload of HAProxy what its check does not look at.
	Preflight bool `yaml:"preflight"`
	// Roles lets the files name who serves, for programs without checks: they are
	// written anew at each change of the writer, at once.
	Roles bool `yaml:"roles"`
	// PgBouncer is the one that reads the files: its databases are what the built-in
	// template writes, and its console reloads it.
	PgBouncer string `yaml:"pgbouncer"`
	// Timeout bounds a check and a reload each.
	Timeout time.Duration `yaml:"timeout"`
	// ReloadInterval is the least time between two reloads.
	ReloadInterval time.Duration `yaml:"reload_interval"`
}

// File is one rendered file. Exactly one of Builtin and Source is set.
type File struct {
	Builtin     Builtin  `yaml:"builtin"`
	Source      string   `yaml:"source" type:"file"`
	Destination string   `yaml:"destination" type:"path"`
	Mode        FileMode `yaml:"mode"`
	// Expect says what a file of Source is, so that it is looked over; a Builtin is.
	Expect Builtin `yaml:"expect"`
}

// The placeholders that arguments of Check and Reload may hold. They stand for
// the group's first file; {{.Staged 2}} stands for the second, and so on.
const (
	PlaceholderStaged      = "{{.Staged}}"      // path of the new file before it is live; Check only
	PlaceholderDestination = "{{.Destination}}" // path of the live file
)

// vars are texts by name.
type vars map[string]string

func (v *vars) decode(d *decoder, p path, n *yaml.Node) {
	decodeTexts((*map[string]string)(v), "value", d, p, n)
}

func (t *Template) setDefaults() {
	t.Preflight = true
	t.Timeout = 30 * time.Second
	t.ReloadInterval = 2 * time.Second
}

func (f *File) setDefaults() { f.Mode = 0o640 }

// IsPgBouncer reports whether the file is the section [databases] of a PgBouncer.
func (f File) IsPgBouncer() bool {
	return f.Builtin == BuiltinPgBouncer || f.Expect == BuiltinPgBouncer
}

// IsHAProxy reports whether the file is a whole configuration of HAProxy.
func (f File) IsHAProxy() bool { return f.Builtin == BuiltinHAProxy || f.Expect == BuiltinHAProxy }

// IsHAProxy reports whether the group is known to be HAProxy's: by one of its files, or
// by its master's socket.
func (t Template) IsHAProxy() bool {
	return t.MasterSocket != "" || slices.ContainsFunc(t.Files, File.IsHAProxy)
}

// Covers reports whether a group renders a cluster.
func (t Template) Covers(cluster string) bool {
	return len(t.Clusters) == 0 || slices.Contains(t.Clusters, cluster)
}
