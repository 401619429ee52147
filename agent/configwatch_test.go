package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// takes waits until the agent has taken or refused a configuration.
func (r *rig) taken(n int) {
	r.t.Helper()
	r.until("the next reload", func() bool { return r.reloads() >= n })
}

func (r *rig) reloads() int {
	l := r.log.String()
	return strings.Count(l, `msg="configuration taken"`) + strings.Count(l, `msg="the configuration was not taken`)
}

func TestAChangeOfTheFileReloads(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.watch = true
	text := func(name string) string { return base + listen() + "clusters:\n" + clusterText(name, n1, n2) }
	r.write(text("one"))
	r.up()
	r.writer("one", "n1")

	r.write(text("two")) // by rename
	r.writer("two", "n1")
	if err := os.WriteFile(r.path, []byte(text("three")), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	r.writer("three", "n1")
	r.write("clusters: [")
	r.taken(3)
	if s := r.statusText(); !strings.Contains(s, "the last reload was refused") || !strings.Contains(s, "cluster three   writer n1") {
		t.Errorf("after a bad file status is\n%s", s)
	}
	if err := os.Remove(r.path); err != nil { // changes nothing, and is no bad configuration either
		t.Fatal(err)
	}
	r.write(text("four"))
	r.writer("four", "n1")
	if n := r.reloads(); n != 4 {
		t.Errorf("%d reloads, want one for each of four changes", n)
	}
}

// A change between the first reading and the start of the watch is no exception,
// and contents that a SIGHUP has read already are no change.
func TestContentsAreReadOnce(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.watch = true
	text := func(name string) string { return base + listen() + "clusters:\n" + clusterText(name, n1, n2) }
	r.write(text("one"))
	a, err := r.new()
	if err != nil {
		t.Fatal(err)
	}
	r.write(text("two"))
	r.run(a)
	r.writer("two", "n1")

	r.write(text("three"))
	if err := r.reload(); err != nil { // as SIGHUP does, before the watch notices
		t.Fatal(err)
	}
	<-time.After(4 * settleConfig) // time for a second reading, which must not come
	r.write(text("four"))
	r.writer("four", "n1")
	if n := r.reloads(); n != 3 {
		t.Errorf("%d reloads, want three", n)
	}
}

// A mounted ConfigMap changes by a swap of the link ..data; the file itself is a
// link that never changes.
func TestAConfigMapReloads(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.watch = true
	mount := func(version, name string) {
		t.Helper()
		dir := filepath.Join(r.dir, "..v"+version)
		text := "state_dir: " + r.dir + "/state\n" + strings.TrimPrefix(base, "state_dir: state\n") + listen() + "clusters:\n" + clusterText(name, n1, n2)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pgsteer.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("..v"+version, filepath.Join(r.dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(r.dir, "..data_tmp"), filepath.Join(r.dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("1", "one")
	if err := os.Symlink("..data/pgsteer.yaml", r.path); err != nil {
		t.Fatal(err)
	}
	r.up()
	r.writer("one", "n1")
	begin := time.Now()
	mount("2", "two")
	r.writer("two", "n1")
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("noticed after %s, by polling alone", d)
	}
}
