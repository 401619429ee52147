package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
