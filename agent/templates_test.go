package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/config"
)

// A preflight is for HAProxy's files alone, unless it is switched off.
func TestPreflightIsForHAProxy(t *testing.T) {
	const file, check = "files: [{source: a.tmpl, destination: /etc/a", `}], check: [haproxy, -c, -f, "{{.Staged}}"]`
	for group, want := range map[string]bool{
		file + check:                                                                   false,
		file + ", expect: haproxy" + check:                                             true,
		file + check + ", master_socket: /m":                                           true,
		file + ", expect: haproxy" + check + ", preflight: false":                      false,
		"files: [{builtin: haproxy, destination: /etc/a" + check:                       true,
		"files: [{builtin: haproxy, destination: /etc/a" + check + ", preflight: true": true,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.tmpl"), []byte("a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse(filepath.Join(dir, "pgsteer.yaml"), []byte("clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}\ntemplates: [{name: a, "+group+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		groups, err := Groups(cfg)
		if err != nil || len(groups) != 1 || groups[0].Preflight != want {
			t.Errorf("%s: %+v, %v, want a preflight: %v", group, groups, err, want)
		}
	}
}

// A check may stumble over a file that is not ours. Every reload tries again, and
// the first one after that file was mended is enough.
func TestReloadTriesRefusedFilesAgain(t *testing.T) {
	r := newRig(t)
	r.file("hosts.tmpl", "hosts\n")
	script := r.file("check.sh", "cd '"+r.dir+"'\necho asked >>asked\ntest -e mended\n")
	r.write(base, listen(), "clusters:\n  main: {nodes: {n1: 127.0.0.1:1}}\n",
		"templates: [{name: hosts, files: [{source: hosts.tmpl, destination: hosts}], check: [sh, "+script+", \"{{.Staged}}\"]}]\n")
	r.up()
	asked := func() int {
		b, _ := os.ReadFile(filepath.Join(r.dir, "asked"))
		return strings.Count(string(b), "\n")
	}
	again := func() {
		before := asked()
		if err := r.reload(); err != nil {
			t.Fatal(err)
		}
		r.until("another check", func() bool { return asked() > before })
	}
	r.until("the first check", func() bool { return asked() > 0 })
	for range 10 { // by itself the tenth would come after minutes
		again()
	}
	if s := r.statusText(); !strings.Contains(s, "template hosts") || !strings.Contains(s, "refused") {
		t.Errorf("status does not tell of the refusal:\n%s", s)
	}
	r.file("mended", "")
	again()
	r.until("the file", func() bool { b, _ := os.ReadFile(filepath.Join(r.dir, "hosts")); return string(b) == "hosts\n" })
	r.until("the metric of what is left out", func() bool {
		return r.metric(`pgsteer_sink_present{sink="template hosts",what="left_out"}`) == "0"
	})
}

// A group without a master's socket is confirmed at the admin sockets.
func TestGroupsKnowTheAdminSockets(t *testing.T) {
	cfg, err := config.Parse("pgsteer.yaml", []byte(`clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}
haproxy: {sockets: [/run/a.sock, /run/b.sock]}
templates: [{name: a, files: [{builtin: haproxy, destination: /etc/a}], check: [haproxy, -c, -f, "{{.Staged}}"], reload_unit: haproxy.service}]
`))
	if err != nil {
		t.Fatal(err)
	}
	groups, err := Groups(cfg)
	if err != nil || strings.Join(groups[0].AdminSockets, " ") != "/run/a.sock /run/b.sock" {
		t.Errorf("%+v, %v", groups, err)
	}
}
