package xds

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
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
	write(t, f)
	set := fuzzSet(t, up, down)
	blocked := filepath.Join(dir, listenersFile, "in the way")
	for i, step := range []struct {
		set *encoded
		has bool // whether the clusters' file names the cluster, with the listeners' blocked
	}{{set, true}, {nil, true}, {set, true}, {nil, true}} {
		_ = os.Remove(filepath.Dir(blocked))
		if err := os.MkdirAll(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		f.put(map[string]*encoded{"main": step.set}, nil)
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
		write(t, f)
	}
	same(t, "files in the end", []string{clustersFile, listenersFile}, slices.Sorted(maps.Keys(placed(t, dir))))
}

func write(tb testing.TB, f *files) {
	tb.Helper()
	if err := f.write(); err != nil {
		tb.Fatal(err)
	}
}

// placed tells the files of a folder apart from those that are moved into their places later.
func placed(t *testing.T, dir string) map[string]os.FileInfo {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]os.FileInfo)
	for _, e := range entries {
		if all[e.Name()], err = e.Info(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// moved names the files that were moved into place since, and with a minus those that
// went. What a name of endpoints has after its pool is cut off.
func moved(t *testing.T, dir string, since map[string]os.FileInfo) string {
	t.Helper()
	var all []string
	now := placed(t, dir)
	for name, info := range now {
		if was := since[name]; was == nil || !os.SameFile(was, info) || !was.ModTime().Equal(info.ModTime()) {
			all = append(all, poolOf(name))
		}
	}
	for name := range since {
		if now[name] == nil {
			all = append(all, "-"+poolOf(name))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func setOf(tb testing.TB, snap *topology.Snapshot, s resources.Settings) *encoded {
	tb.Helper()
	s.Listen = listenAnywhere
	set, err := resources.Build(snap, s)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := encode(set)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// TestFilesHaveOnlyWhatChanged: files without a change in them are not moved, and what did
// not change is not encoded again; what is in them is what protojson makes of everything.
func TestFilesHaveOnlyWhatChanged(t *testing.T) {
	dir := t.TempDir()
	f := newFiles(dir, slog.New(slog.DiscardHandler))
	sets := make(map[string]*encoded)
	for _, c := range []string{"alpha", "main", "omega"} {
		sets[c] = setOf(t, decision(c, 1, up, down, down), resources.Settings{})
	}
	f.put(sets, nil)
	write(t, f)
	stands := f.listeners.parts["main"]["main/replica"]
	stands.text = strings.Replace(stands.text, `"read"`, `"as it was"`, 1)
	f.listeners.parts["main"]["main/replica"] = stands
	slow := resources.Settings{ConnectTimeout: 2 * time.Second}
	lags := decision("main", 4, drain, down, down)
	lags.Pools[1].Nodes[1].Verdict = topology.Drain
	for _, step := range []struct {
		what, moved string
		snap        *topology.Snapshot
		settings    resources.Settings
	}{
		{"nothing changed", "", decision("main", 2, up, down, down), resources.Settings{}},
		{"the writer drains", "endpoints-main%2Fprimary", decision("main", 3, drain, down, down), resources.Settings{}},
		{"a replica drains", "endpoints-main%2Freplica", lags, resources.Settings{}},
		{"another writer", "endpoints-main%2Fprimary endpoints-main%2Freplica listeners.json", decision("main", 5, down, up, down), resources.Settings{}},
		{
			"other clusters", "-endpoints-main%2Fprimary -endpoints-main%2Freplica clusters.json endpoints-main%2Fprimary endpoints-main%2Freplica",
			decision("main", 6, down, up, down), slow,
		},
	} {
		before := placed(t, dir)
		f.put(map[string]*encoded{"main": setOf(t, step.snap, step.settings)}, nil)
		f.take()
		for name, a := range f.endpoints["main"] {
			if file := poolOf(filepath.Base(f.path(name))); (a.text != "") != strings.Contains(" "+step.moved, " "+file) {
				t.Errorf("when %s the text of %s is %q", step.what, file, a.text)
			}
		}
		if err := f.place(); err != nil {
			t.Fatal(err)
		}
		same(t, "moved when "+step.what, step.moved, moved(t, dir, before))
	}
	read := func(file string) (string, *discoveryv3.DiscoveryResponse) {
		b, err := os.ReadFile(filepath.Join(dir, file))
		m := new(discoveryv3.DiscoveryResponse)
		if err = errors.Join(err, protojson.Unmarshal(b, m)); err != nil {
			t.Fatal(err)
		}
		return string(b), m
	}
	for _, file := range []string{clustersFile, listenersFile} {
		got, m := read(file)
		want, err := toJSON(m, "")
		if err != nil || got != want+"\n" || len(m.GetResources()) != 6 {
			t.Errorf("%s has %d resources (%v) and is\n%s\nwant\n%s", file, len(m.GetResources()), err, got, want)
		}
	}
	if got, _ := read(listenersFile); !strings.Contains(got, "as it was") {
		t.Error("a listener that did not change was encoded again")
	}
	before := placed(t, dir)
	next := newFiles(dir, slog.New(slog.DiscardHandler)) // a restart
	sets["main"] = setOf(t, decision("main", 1, down, up, down), slow)
	next.put(sets, nil)
	write(t, next)
	same(t, "moved by a restart", listenersFile, moved(t, dir, before)) // what was as it was
}

// TestFilesWithoutOneCluster: a cluster that nobody decides keeps the files of the others
// away for no longer than the answers to Envoys, and what the files have of it stays until
// it is decided or gone.
func TestFilesWithoutOneCluster(t *testing.T) {
	dir := t.TempDir()
	listeners := func() string {
		b, err := os.ReadFile(filepath.Join(dir, listenersFile))
		if err != nil {
			t.Fatal(err)
		}
		m := new(discoveryv3.DiscoveryResponse)
		if err := protojson.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, l := range m.GetResources() {
			if s := text(t, "", l.GetValue(), kindListener); strings.Contains(s, "/primary ") {
				all = append(all, s)
			}
		}
		return strings.Join(all, ", ")
	}
	o := Options{Files: dir, Settings: Settings{Settings: resources.Settings{Listen: listenAnywhere}}}
	inBubbleWith(t, []string{"bad", "main"}, o, func(b *bubble) {
		b.set(decision("main", 1, up, down, down), time.Hour)
		b.set(decision("bad", 1, up, down, down), time.Hour)
		same(t, "listeners", "bad/primary writer/n1, main/primary writer/n1", listeners())
	})
	clusters := []string{"bad", "main", "new"}
	inBubbleWith(t, nil, o, func(b *bubble) {
		b.pub.clusters = func() []string { return clusters }
		before := placed(t, dir)
		b.set(decision("main", 1, down, up, down), time.Hour)
		b.set(decision("bad", 1, und, und, und), time.Hour)
		b.pass(undecidedMost - time.Millisecond)
		same(t, "moved before the time is over", "", moved(t, dir, before))
		b.pass(time.Millisecond)
		same(t, "moved then", "endpoints-main%2Fprimary endpoints-main%2Freplica listeners.json", moved(t, dir, before))
		same(t, "listeners", "bad/primary writer/n1, main/primary writer/n2", listeners())
		b.set(decision("bad", 2, down, up, down), time.Hour)
		same(t, "listeners once it is decided", "bad/primary writer/n2, main/primary writer/n2", listeners())
		b.set(decision("new", 1, up, down, down), time.Hour)
	})
	inBubbleWith(t, nil, o, func(b *bubble) {
		b.pub.clusters = func() []string { return clusters }
		b.set(decision("main", 1, down, up, down), time.Second) // and then no more
		clusters = []string{"bad", "main"}                      // while it is undecided
		b.reconfigure("127.0.0.1", "")
		b.pass(undecidedMost)
		same(t, "listeners", "bad/primary writer/n2, main/primary writer/n2", listeners())
		clusters = []string{"main"}
		before := placed(t, dir)
		b.reconfigure("127.0.0.1", "")
		same(t, "moved when it is gone", "-endpoints-bad%2Fprimary -endpoints-bad%2Freplica clusters.json listeners.json", moved(t, dir, before))
		same(t, "listeners", "main/primary writer/n2", listeners())
	})
}

// TestFilesThatNobodyUnderstands are written anew, and their loss is told.
func TestFilesThatNobodyUnderstands(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, listenersFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	f := newFiles(dir, slog.New(slog.NewTextHandler(&log, nil)))
	f.put(map[string]*encoded{"main": fuzzSet(t, up, down)}, []string{"bad"})
	write(t, f)
	b, err := os.ReadFile(filepath.Join(dir, listenersFile))
	if err != nil || !strings.Contains(string(b), "main/primary") || !strings.Contains(log.String(), "cannot be read") {
		t.Errorf("the listeners are %s (%v), and the log says %q", b, err, log.String())
	}
}

// TestFilesOfWhatCannotBeEncoded: of a cluster whose decision cannot be written, after a
// start, everything stays as it stood.
func TestFilesOfWhatCannotBeEncoded(t *testing.T) {
	dir := t.TempDir()
	before := newFiles(dir, slog.New(slog.DiscardHandler))
	before.put(map[string]*encoded{"main": fuzzSet(t, up, down)}, nil)
	write(t, before)
	stood := placed(t, dir)
	bad := fuzzSet(t, down, up)
	bad[kindListener]["main/primary"] = resourceOf(kindListener, "main/primary", []byte("no message"))
	f := newFiles(dir, slog.New(slog.DiscardHandler))
	f.put(map[string]*encoded{"main": bad}, nil)
	write(t, f)
	f.put(nil, nil)
	write(t, f)
	if got := moved(t, dir, stood); got != "" {
		t.Errorf("moved were %s, want none", got)
	}
	f.put(map[string]*encoded{"main": nil}, nil)
	write(t, f)
	same(t, "files without the cluster", []string{clustersFile, listenersFile}, slices.Sorted(maps.Keys(placed(t, dir))))
}

// TestFolderComesLate: what is in a folder that is mounted later counts as well.
func TestFolderComesLate(t *testing.T) {
	dir := t.TempDir()
	before, late := filepath.Join(dir, "before"), filepath.Join(dir, "late")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	first := newFiles(before, slog.New(slog.DiscardHandler))
	first.put(map[string]*encoded{"bad": setOf(t, decision("bad", 1, up, down), resources.Settings{})}, nil)
	write(t, first)
	f := newFiles(late, slog.New(slog.DiscardHandler))
	f.put(map[string]*encoded{"main": fuzzSet(t, up, down)}, []string{"bad"})
	if err := f.write(); err == nil {
		t.Fatal("files were written without their folder")
	}
	if err := os.Rename(before, late); err != nil {
		t.Fatal(err)
	}
	write(t, f)
	b, err := os.ReadFile(filepath.Join(late, listenersFile))
	if err != nil || !strings.Contains(string(b), "bad/primary") || !strings.Contains(string(b), "main/primary") {
		t.Errorf("the listeners are %s (%v)", b, err)
	}
}

// TestFilesAreWrittenToTheEnd: what was decided last before the agent ends is in them.
func TestFilesAreWrittenToTheEnd(t *testing.T) {
	f := newFiles(t.TempDir(), slog.New(slog.DiscardHandler))
	f.put(map[string]*encoded{"main": fuzzSet(t, up, down)}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.run(ctx)
	if _, err := os.Stat(filepath.Join(f.dir, listenersFile)); err != nil {
		t.Error(err)
	}
}
