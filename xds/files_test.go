package xds

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEnvoyReadsFiles: an Envoy that starts while no agent runs serves by the
// files, and follows them once an agent writes again.
func TestEnvoyReadsFiles(t *testing.T) {
	c := newCluster(t)
	c.rig.stop()
	dir := t.TempDir()
	o := Options{Settings: c.settings, Files: dir}
	c.rig = newRigAt(t, o, "127.0.0.1:0")
	c.decide("", up, down)
	until(t, "the files are there", func() bool { _, err := os.Stat(filepath.Join(dir, listenersFile)); return err == nil })
	c.rig.stop()
	startEnvoy(t, BootstrapOptions{Files: dir})
	held := c.reachAll("n1", 10)
	before := modified(t, dir)
	c.rig = newRigAt(t, o, "127.0.0.1:0")
	c.decide("", up, down)
	until(t, "the agent has published", func() bool { return c.rig.server.Status().Answering })
	c.live("after the agent came back", held)
	c.decide("", drain, down)
	c.closed()
	c.live("while the writer drains", held)
	if now := modified(t, dir); now[clustersFile] != before[clustersFile] || now[listenersFile] != before[listenersFile] {
		t.Errorf("files were moved although only endpoints changed: %v, then %v", before, now)
	}
	c.decide("", down, up)
	c.cut(held, time.Now())
	c.live("of the new writer", c.reachAll("n2", 1))
}

func modified(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	all := make(map[string]time.Time)
	for _, name := range []string{clustersFile, listenersFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = info.ModTime()
	}
	return all
}

// TestFilesFollowClusters: what is gone leaves no file, and a folder that cannot
// be written is told and tried again.
func TestFilesFollowClusters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	r := newRig(t, Options{Files: dir})
	r.set(decision("main", 1, up, down, down))
	r.set(decision("beta", 1, up, down, down))
	time.AfterFunc(100*time.Millisecond, func() { _ = os.Mkdir(dir, 0o700) })
	count := func() (n int) {
		all, _ := filepath.Glob(filepath.Join(dir, endpointsPre+"*"))
		return len(all)
	}
	until(t, "four pools", func() bool { return count() == 4 })
	r.views.Delete("beta")
	until(t, "two pools", func() bool { return count() == 2 })
	b, err := os.ReadFile(filepath.Join(dir, clustersFile))
	if err != nil || strings.Contains(string(b), "beta") || !strings.Contains(string(b), "main%2Fprimary@") {
		t.Errorf("the clusters are %s (%v)", b, err)
	}
}

// TestOrderOfFiles: a cluster is there before its listener, and goes after it. A
// file that cannot be written shows which one was next.
func TestOrderOfFiles(t *testing.T) {
	dir := t.TempDir()
	f := newFiles(dir, slog.New(slog.DiscardHandler))
	set := fuzzSet(t, up, down)
	blocked := filepath.Join(dir, listenersFile, "in the way")
	for i, step := range []struct {
		sets map[string]*encoded
		has  bool // whether the clusters' file names the cluster, with the listeners' blocked
	}{{map[string]*encoded{"main": set}, true}, {nil, true}} {
		_ = os.Remove(filepath.Dir(blocked))
		if err := os.MkdirAll(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		f.put(step.sets)
		for range 2 { // tried again, in the same order
			if err := f.write(); err == nil {
				t.Fatal("a folder was replaced by a file")
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, clustersFile)); err != nil || strings.Contains(string(b), "main/primary") != step.has {
			t.Errorf("step %d: the clusters are %s (%v)", i, b, err)
		}
		if err := os.RemoveAll(filepath.Dir(blocked)); err != nil {
			t.Fatal(err)
		}
		if err := f.write(); err != nil {
			t.Fatal(err)
		}
	}
}
