package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse reads lines of "name host:port"; a line "nothing" is no node.
func parse(name string, text []byte) ([]topology.Node, error) {
	var nodes []topology.Node
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) == 1 && f[0] == "nothing" {
			continue
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("%s: %q is not a name and an address", name, line)
		}
		a, err := topology.ParseAddress(f[1])
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, topology.Node{Name: f[0], Address: a})
	}
	return nodes, nil
}

const (
	one = "n1 10.0.0.1:5432\n"
	two = "n1 10.0.0.1:5432\nn2 10.0.0.2:5432\n"
)

// rig is a source on a real file, with a fake clock and scripted notices.
type rig struct {
	t     *testing.T
	path  string
	names chan string

	mu   sync.Mutex
	seen []string
	told int // how many of them want has compared
}

// withRig runs a test on a source whose file holds a text at the start; empty:
// there is none.
func withRig(t *testing.T, text string, test func(*rig)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nodes")
	if text != "" {
		replace(t, path, text)
	}
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, path: path, names: make(chan string)}
		s, err := New(Options{Cluster: "main", Path: path, Parse: parse, Now: topology.NewTicker(time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		s.notify = func(string) (notices, error) {
			return notices{names: r.names, again: func() {}, close: func() {}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx, r.take) }()
		test(r)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (r *rig) take(o topology.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, word(o))
	if o.Seq != uint64(len(r.seen)) || o.Cluster != "main" ||
		o.Source != (topology.SourceID{Kind: topology.SourceFile, Name: r.path}) || o.AskedAt.Mono == 0 || o.At.Mono == 0 {
		r.t.Errorf("observation %d is %+v", len(r.seen), o)
	}
}

// word writes an observation as its nodes, or as the failure's class and text.
func word(o topology.Observation) string {
	if o.Failure != nil {
		return string(o.Failure.Class) + ": " + o.Failure.Text
	}
	var names []string
	for _, n := range o.Nodes.Nodes {
		names = append(names, n.Name)
	}
	return strings.Join(names, " ")
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wrote(text string) {
	r.t.Helper()
	r.write(text)
	r.names <- r.path
}

// want lets time pass and compares what was reported since the last call. A wanted
// failure is a part of its text.
func (r *rig) want(d time.Duration, want ...string) {
	r.t.Helper()
	<-time.After(d + time.Microsecond) // what is due at d comes first
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.seen[r.told:]
	r.told = len(r.seen)
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = got[i] == want[i] || strings.HasPrefix(got[i], "content: ") && strings.Contains(got[i], want[i])
	}
	if !ok {
		r.t.Errorf("reported %q, want %q", got, want)
	}
}

const ms = time.Millisecond

func TestAFileIsReadAtTheStartAndOnceForEachChange(t *testing.T) {
	withRig(t, "", func(r *rig) {
		r.want(99*ms, "no such file")
		r.wrote(one)
		r.want(199 * ms)
		r.want(ms, "n1")
		r.wrote(one)
		r.want(time.Hour)
		r.wrote(two)
		r.want(200*ms, "n1 n2")
	})
}

func TestAFileIsPolledWithoutNotices(t *testing.T) {
	withRig(t, one, func(r *rig) {
		r.want(100*ms, "n1")
		close(r.names)
		r.write(two)
		r.want(29 * time.Second)
		r.want(1200*ms, "n1 n2")
	})
}

func TestOtherFilesOfTheFolderAreNoBusinessOfOurs(t *testing.T) {
	withRig(t, one, func(r *rig) {
		r.want(100*ms, "n1")
		r.write(two)
		r.names <- filepath.Join(filepath.Dir(r.path), "other")
		r.want(time.Second)
		r.names <- filepath.Join(filepath.Dir(r.path), "..data") // a ConfigMap's swap
		r.want(time.Second, "n1 n2")
	})
}

func TestAFileThatIsBeingWrittenIsLeftAlone(t *testing.T) {
	withRig(t, two, func(r *rig) {
		r.want(100*ms, "n1 n2")
		for range 20 {
			r.wrote(one)
			r.want(90 * ms)
		}
		r.want(50 * ms)
		r.write(two) // between the two reads, and without a notice
		r.want(time.Second)
	})
}

func TestAFileThatNeverRestsIsReadAtLast(t *testing.T) {
	withRig(t, one, func(r *rig) {
		r.want(100*ms, "n1")
		r.write(two)
		for range 350 { // 31.5 s
			r.names <- r.path
			<-time.After(90 * ms)
		}
		r.want(0, "n1 n2")
	})
}

func TestABadFileChangesNothingAndIsReported(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "is empty"},
		{"blank", " \n\n", "is empty"},
		{"no node", "nothing\n", "lists no node"},
		{"nonsense", "n1\n", "is not a name and an address"},
		{"bad name", "n,1 10.0.0.1:5432\n", "n,1"},
		{"name twice", one + "n1 10.0.0.2:5432\n", "n1 is listed twice"},
		{"address twice", one + "n2 10.0.0.1:5432\n", "same address"},
		{"too large", strings.Repeat(one, maxSize/len(one)+1), "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			withRig(t, one, func(r *rig) {
				r.want(100*ms, "n1")
				r.wrote(c.text)
				r.want(200*ms, c.want)
				r.wrote(one) // as before: the trouble is over, which is news
				r.want(200*ms, "n1")
			})
		})
	}
}

func TestAFileThatVanishes(t *testing.T) {
	withRig(t, one, func(r *rig) {
		r.want(100*ms, "n1")
		if err := os.Remove(r.path); err != nil {
			t.Fatal(err)
		}
		r.names <- r.path
		r.want(100*ms, "no such file")
		r.want(30*time.Second, "no such file")
	})
}

func TestAFolderInPlaceOfAFile(t *testing.T) {
	withRig(t, "", func(r *rig) {
		r.want(0, "no such file")
		if err := os.Mkdir(r.path, 0o700); err != nil {
			t.Fatal(err)
		}
		r.want(30*time.Second, "no regular file")
	})
}

func TestAStaticListIsReportedOnce(t *testing.T) {
	nodes, err := parse("config", []byte(two))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Cluster: "main", Static: nodes, Now: topology.NewTicker(time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		var got []topology.Observation
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.Run(ctx, func(o topology.Observation) { got = append(got, o) }); err != nil {
			t.Error(err)
		}
		if len(got) != 1 || got[0].Source.Name != "config" || got[0].Seq != 1 {
			t.Fatalf("reported %+v, want one list of source config", got)
		}
		if d := cmp.Diff(nodes, got[0].Nodes.Nodes); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

func TestFaultsOfTheOptions(t *testing.T) {
	now, nodes := topology.NewTicker(time.Now), []topology.Node{{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 1}}}
	for name, o := range map[string]Options{
		"no cluster":   {Static: nodes, Now: now},
		"no clock":     {Cluster: "main", Static: nodes},
		"neither":      {Cluster: "main", Now: now},
		"both":         {Cluster: "main", Now: now, Static: nodes, Path: "x", Parse: parse},
		"no parser":    {Cluster: "main", Now: now, Path: "x"},
		"node twice":   {Cluster: "main", Now: now, Static: append(nodes, nodes...)},
		"node nowhere": {Cluster: "main", Now: now, Static: []topology.Node{{Name: "n1"}}},
	} {
		if s, err := New(o); err == nil {
			t.Errorf("%s: no error, but %v", name, s)
		}
	}
}

func TestTheSystemTellsOfReplacedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes")
	s, err := New(Options{
		Cluster: "main", Path: path, Parse: parse, Now: topology.NewTicker(time.Now),
		Settle: 10 * time.Millisecond, Poll: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan topology.Observation, 100)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error)
	go func() { done <- s.Run(ctx, func(o topology.Observation) { seen <- o }) }()
	for _, text := range []string{one, two, one} {
		if o := <-seen; text == one && o.Failure == nil && len(o.Nodes.Nodes) == 1 {
			t.Errorf("reported before it was written: %+v", o)
		}
		replace(t, path, text)
	}
	if got := word(<-seen); got != "n1" {
		t.Errorf("the last list is %q, want n1", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFolderThatIsMissingIsPolled(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "later")
	n, err := watchFolder(folder)
	if err == nil {
		t.Fatal("no error for a folder that is missing")
	}
	defer n.close()
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	n.again()
	replace(t, filepath.Join(folder, "nodes"), one)
	select {
	case <-n.names:
	case <-time.After(20 * time.Second):
		t.Error("the folder is still not watched")
	}
}
