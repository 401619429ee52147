package agent

import (
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

// testStore is a store in a folder that does not exist yet.
func testStore(t *testing.T) (s *store, logged *logtest.Log) {
	t.Helper()
	logged = &logtest.Log{}
	return newStore(filepath.Join(t.TempDir(), "a", "state"), slog.New(slog.NewTextHandler(logged, nil))), logged
}

func saved(cluster, writer string) topology.Saved {
	return topology.Saved{
		Version: savedVersion, Cluster: cluster, Writer: writer, SystemID: 7, Timeline: 3, SavedAt: time.Unix(1e9, 0).UTC(),
		Nodes:    []topology.Node{{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}, Tags: map[string]string{"zone": "a"}}},
		Verdicts: map[string]map[string]topology.Verdict{"primary": {"n1": topology.Up}},
	}
}

func (s *store) mustWrite(t *testing.T, v topology.Saved) {
	t.Helper()
	s.put(v)
	if !s.flush() {
		t.Fatal(s.err)
	}
}

func TestWhatIsSavedIsLoaded(t *testing.T) {
	s, logged := testStore(t)
	if v := s.load("main"); v != nil {
		t.Fatalf("loaded %+v from nothing", v)
	}
	want := saved("main", "n1")
	s.put(want)
	if d := cmp.Diff(&want, s.load("main")); d != "" {
		t.Errorf("before it is written (-want +got)\n%s", d)
	}
	s.mustWrite(t, want)
	if d := cmp.Diff(&want, s.load("main")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	info, err := os.Stat(s.path("main"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want mode 0600", info.Mode(), err)
	}
	if info, err = os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v; want mode 0700", info.Mode(), err)
	}
	if names := list(t, s.dir); len(names) != 1 {
		t.Errorf("the folder holds %v, want the one file", names)
	}
	if logged.String() != "" {
		t.Errorf("logged %s", logged)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAFileThatCannotBeUsedIsSetAside(t *testing.T) {
	for name, text := range map[string]string{
		"empty":           "",
		"half":            `{"version":1,"cluster":"ma`,
		"another format":  `[]`,
		"another version": `{"version":2,"cluster":"main"}`,
		"another cluster": `{"version":1,"cluster":"two"}`,
		"bad address":     `{"version":1,"cluster":"main","nodes":[{"Name":"n1","Address":"nowhere"}]}`,
		"bad name":        `{"version":1,"cluster":"main","nodes":[{"Name":"n1; shutdown","Address":"10.0.0.1:5432"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, logged := testStore(t)
			if err := os.MkdirAll(s.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.path("main"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if v := s.load("main"); v != nil {
				t.Errorf("loaded %+v", v)
			}
			if l := logged.String(); !strings.Contains(l, "level=ERROR") || !strings.Contains(l, s.path("main")) {
				t.Errorf("logged %q, want an error that names the file", l)
			}
			if got, err := os.ReadFile(s.path("main") + ".corrupt"); err != nil || string(got) != text {
				t.Errorf("set aside is %q, %v", got, err)
			}
			s.mustWrite(t, saved("main", "n2"))
			if v := s.load("main"); v == nil || v.Writer != "n2" {
				t.Errorf("afterwards loaded %+v", v)
			}
		})
	}
}

func TestFieldsOfANewerReleaseSurviveARewrite(t *testing.T) {
	s, _ := testStore(t)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"version":1,"cluster":"main","writer":"n1","maintenance":{"since":[1,2]},"zeal":null}`
	if err := os.WriteFile(s.path("main"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := s.load("main"); v == nil || v.Writer != "n1" {
		t.Fatalf("loaded %+v", v)
	}
	s.mustWrite(t, saved("main", "n2"))
	var got map[string]any
	b, err := os.ReadFile(s.path("main"))
	if err != nil || json.Unmarshal(b, &got) != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if d := cmp.Diff(map[string]any{"since": []any{1.0, 2.0}}, got["maintenance"]); d != "" || got["writer"] != "n2" {
		t.Errorf("(-want +got)\n%s\n%s", d, b)
	}
	if _, ok := got["zeal"]; !ok {
		t.Errorf("a field is lost: %s", b)
	}
}

// TestAFolderThatCannotBeWritten puts a file in the folder's place, which keeps
// root out too.
func TestAFolderThatCannotBeWrittenIsRetriedAndReported(t *testing.T) {
	s, logged := testStore(t)
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s = newStore(s.dir, s.log) // its channels must belong to the bubble
		ctx, cancel := contextFor(t)
		done := make(chan struct{})
		go func() { defer close(done); s.run(ctx) }()
		s.put(saved("main", "n1"))
		synctest.Wait()
		if st := s.status(); st.State != "failing" || !strings.Contains(st.Error, s.dir) {
			t.Errorf("status is %+v", st)
		}
		s.put(saved("two", "n1")) // a newer decision waits for nothing
		synctest.Wait()
		if n := strings.Count(logged.String(), "the state cannot be written"); n != 1 {
			t.Errorf("the trouble was logged %d times:\n%s", n, logged)
		}
		if err := os.Remove(s.dir); err != nil {
			t.Error(err)
		}
		<-time.After(retryWrite)
		synctest.Wait()
		if st := s.status(); st.State != "ok" || !strings.Contains(logged.String(), "the state is written again") {
			t.Errorf("after the trouble, status is %+v and the log\n%s", st, logged)
		}
		cancel()
		<-done
	})
	for _, c := range []string{"main", "two"} {
		if v := s.load(c); v == nil || v.Writer != "n1" {
			t.Errorf("the state of %s is %+v", c, v)
		}
	}
}

func TestTheLastWordIsWrittenAtTheEnd(t *testing.T) {
	s, _ := testStore(t)
	synctest.Test(t, func(t *testing.T) {
		s = newStore(s.dir, s.log) // its channels must belong to the bubble
		ctx, cancel := contextFor(t)
		done := make(chan struct{})
		go func() { defer close(done); s.run(ctx) }()
		synctest.Wait()
		s.put(saved("main", "n9"))
		cancel() // at once: more often than not the end comes first
		<-done
	})
	if b, err := os.ReadFile(s.path("main")); err != nil || !strings.Contains(string(b), "n9") {
		t.Errorf("the file holds %s, %v", b, err)
	}
}

func TestSameSavedIgnoresOnlyTheTime(t *testing.T) {
	a := saved("main", "n1")
	for name, change := range map[string]func(*topology.Saved){
		"writer":   func(v *topology.Saved) { v.Writer = "" },
		"timeline": func(v *topology.Saved) { v.Timeline++ },
		"system":   func(v *topology.Saved) { v.SystemID++ },
		"node":     func(v *topology.Saved) { v.Nodes = nil },
		"tag":      func(v *topology.Saved) { v.Nodes = []topology.Node{{Name: "n1", Address: v.Nodes[0].Address}} },
		"verdict": func(v *topology.Saved) {
			v.Verdicts = map[string]map[string]topology.Verdict{"primary": {"n1": topology.Down}}
		},
	} {
		b := saved("main", "n1")
		change(&b)
		if sameSaved(a, b) {
			t.Errorf("another %s counts as the same", name)
		}
	}
	b := saved("main", "n1")
	b.SavedAt = time.Now()
	if !sameSaved(a, b) {
		t.Error("another time counts as a change")
	}
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write("state_dir: state\npostgres: {user: probe, sslmode: disable, interval: 10ms}\n", listen(), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	path := filepath.Join(r.dir, "state", "cluster-main.json")
	stat := func() (info fs.FileInfo) {
		r.until("the state on disk", func() (ok bool) {
			b, err := os.ReadFile(path)
			info, _ = os.Stat(path)
			return err == nil && strings.Contains(string(b), `"n2": "up"`) && strings.Contains(string(b), `"n1": "up"`)
		})
		return info
	}
	before, asked := stat(), n1.Counts().Full
	r.until("fifty more answers", func() bool { return n1.Counts().Full > asked+50 })
	if after := stat(); !os.SameFile(before, after) {
		t.Error("the file was written anew, although nothing changed")
	}
	// A changed decision is there after the stop at the latest.
	n1.Set(func(s *pgState) { s.Probe.ReadOnly = topology.Yes })
	r.until("the writer to go", func() bool { return r.view("main").Snapshot.Writer == "" })
	r.down()
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), `"n1": "down"`) {
		t.Errorf("after the stop the file holds %s, %v", b, err)
	}
}
