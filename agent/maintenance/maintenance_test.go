package maintenance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

var n2 = Target{Cluster: "main", Node: "n2"}

// started is a set with n2 out since noon.
func started(t *testing.T, until time.Duration) Set {
	t.Helper()
	r := Record{Target: n2, Reason: "kernel", Who: "ann"}
	if until > 0 {
		r.Until = noon.Add(until)
	}
	s, _, changed := Set{}.Start(r, noon)
	if !changed {
		t.Fatal("a start changed nothing")
	}
	return s
}

// A record holds from its start to its end, whichever end comes first; what was
// said of it can be changed meanwhile, and it stays out since when it was.
func TestStartAndEnd(t *testing.T) {
	s := started(t, time.Hour)
	later := noon.Add(10 * time.Minute)
	for at, want := range map[time.Time]int{noon: 1, noon.Add(time.Hour - 1): 1, noon.Add(time.Hour): 0} {
		if got := len(s.Active(at)); got != want {
			t.Errorf("at %s %d records hold, want %d", at, got, want)
		}
	}
	if _, before, changed := s.Start(Record{Target: n2, Who: "bob"}, later); changed || !before.Since.Equal(noon) {
		t.Error("a second start without words is a change")
	}
	s, _, changed := s.Start(Record{Target: n2, Until: noon.Add(2 * time.Hour)}, later)
	if r, _ := s.Get(n2); !changed || !r.Since.Equal(noon) || r.Reason != "kernel" || !r.Until.Equal(noon.Add(2*time.Hour)) {
		t.Errorf("a second start with another end gives %+v", r)
	}
	s, _, changed = s.End(n2, "ann", later)
	if _, _, again := s.End(n2, "ann", later); !changed || again || len(s.Active(later)) != 0 {
		t.Error("an end does not end, or ends twice")
	}
	s, _, _ = s.Start(Record{Target: n2}, noon.Add(24*time.Hour))
	if r, _ := s.Get(n2); !r.Until.IsZero() || r.Reason != "" || !r.Active(noon.Add(25*time.Hour)) {
		t.Errorf("a start after an end takes over %+v", r)
	}
	s, _, _ = s.End(n2, "", noon.Add(25*time.Hour))
	s, _, _ = s.Start(Record{Target: Agent}, noon.Add(24*time.Hour+remember+2*time.Hour))
	if _, still := s.Get(n2); still || len(s.records) != 1 {
		t.Errorf("an end long ago is remembered: %+v", s.records)
	}
}

// What the rules of a cluster are told: its own records and the agent's.
func TestOf(t *testing.T) {
	s := started(t, 0)
	s, _, _ = s.Start(Record{Target: Target{Cluster: "other"}}, noon)
	s, _, _ = s.Start(Record{Target: Target{Cluster: "main", Pool: "replica"}}, noon)
	if m := s.Of("main"); len(m.Records) != 2 || m.Records[0].Node != "n2" || m.Records[1].Pool != "replica" {
		t.Errorf("main is told %+v", m)
	}
	s, _, _ = s.Start(Record{Target: Agent, Reason: "host"}, noon)
	if r, ok := s.Of("third").Active("x", noon); !ok || r.Reason != "host" {
		t.Errorf("a cluster without records is told %+v", s.Of("third"))
	}
	if !s.Of("main").Alone(noon) || started(t, 0).Of("main").Alone(noon) {
		t.Error("whose record is the agent's own is told wrong")
	}
	s, _, _ = s.End(Agent, "", noon)
	if m := s.Of("third"); len(m.Records) != 0 {
		t.Errorf("after the end it is told %+v", m)
	}
}

// Of two words the newer counts, in whatever order they are heard, and also after
// the numbers of the store were lost.
func TestMerge(t *testing.T) {
	begun := started(t, 0)
	over, _, _ := begun.End(n2, "bob", noon.Add(-time.Minute)) // by a clock that is slow
	for _, s := range []Set{begun.merge(over), over.merge(begun)} {
		if len(s.Active(noon)) != 0 {
			t.Error("an end by a slow clock ends nothing")
		}
	}
	if s := begun.merge(Set{}); len(s.Active(noon)) != 1 {
		t.Error("an empty set ends a record")
	}
	for range 5 { // so that its numbers are ahead of those of a store that is made anew
		begun, _, _ = begun.Start(Record{Target: n2, Reason: "more"}, noon)
	}
	anew, _, _ := Set{}.Start(Record{Target: n2}, noon.Add(time.Hour))
	ended, _, _ := anew.End(n2, "bob", noon.Add(time.Hour))
	if s := begun.merge(ended); len(s.Active(noon.Add(time.Hour))) != 0 {
		t.Error("an end in a store that was made anew ends nothing")
	}
}

// Keys of a newer release are kept, of the document and of each record, through
// changes too; what is not understood is refused as a whole.
func TestDocument(t *testing.T) {
	s, err := Decode([]byte(`{"version": 1, "color": "red", "records": [
		{"cluster": "main", "node": "n2", "since": "2026-11-30T12:00:00Z", "revision": 5, "shape": {"round": true}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ = s.Start(Record{Target: n2, Reason: "disk"}, noon)
	ended, _, _ := s.End(n2, "ann", noon)
	var b []byte
	for _, step := range []struct {
		s    Set
		want string
	}{{s, `"reason": "disk"`}, {ended, `"ended_by": "ann"`}} {
		if b, err = (Set{}).merge(step.s).Encode(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"color": "red"`, `"round": true`, step.want} {
			if !strings.Contains(string(b), want) {
				t.Errorf("the document has no %s:\n%s", want, b)
			}
		}
	}
	if again, err := Decode(b); err != nil || len(again.records) != 1 {
		t.Errorf("read again it is %+v, %v", again, err)
	}
	for _, text := range []string{
		`{`, `[]`, `{"version": 2, "records": []}`, `{"records": []}`,
		`{"version": 1, "records": [{"cluster": "main"}]}`,
		`{"version": 1, "records": [{"node": "n2", "since": "2026-11-30T12:00:00Z"}]}`,
		`{"version": 1, "records": [{"cluster": "a b", "since": "2026-11-30T12:00:00Z"}]}`,
		`{"version": 1, "records": [{"cluster": "main", "reason": "a\nb", "since": "2026-11-30T12:00:00Z"}]}`,
		`{"version": 1, "records": [{"cluster": "main", "since": "2026-11-30T12:00:00Z", "until": "2026-11-30T11:00:00Z"}]}`,
		`{"version": 1, "records": [{"cluster": "main", "reason": "` + strings.Repeat("x", maxText+1) + `", "since": "2026-11-30T12:00:00Z"}]}`,
	} {
		if s, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s is taken: %+v", text, s)
		}
	}
}

// disk is a file that can be full.
type disk struct {
	full   atomic.Bool
	writes atomic.Int32
}

func (d *disk) write(path string, b []byte) error {
	if d.writes.Add(1); d.full.Load() {
		return errors.New("no space left on device")
	}
	return os.WriteFile(path, b, 0o600)
}

func open(t *testing.T, path string, d *disk) *Book {
	t.Helper()
	return Open(Options{Path: path, Read: os.ReadFile, Write: d.write, Now: func() time.Time { return noon }, Changed: func() {}})
}

// shelf is a shared store in memory.
type shelf struct {
	text []byte
	away error
}

func (s *shelf) String() string { return "the shelf" }

func (s *shelf) Change(_ context.Context, edit func([]byte) ([]byte, error)) error {
	if s.away != nil {
		return s.away
	}
	next, err := edit(s.text)
	if err == nil && next != nil {
		s.text = next
	}
	return err
}

func takeOut(t Target) Edit {
	return func(s Set) (Set, bool) {
		next, _, changed := s.Start(Record{Target: t}, noon)
		return next, changed
	}
}

// With a local file alone a change that cannot be written is no change; with a
// shared store the copy is written later, and until then what holds is right.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(disk)
		d.full.Store(true)
		path := filepath.Join(t.TempDir(), "maintenance.json")
		b := open(t, path, d)
		b.Share(nil)
		if err := b.Change(t.Context(), n2, takeOut(n2)); err == nil || len(b.Set().Active(noon)) != 0 {
			t.Errorf("a change on a full disk: %v, %+v", err, b.Set())
		}
		s := new(shelf)
		b.Share(s)
		if err := b.Change(t.Context(), n2, takeOut(n2)); err != nil || len(b.Set().Active(noon)) != 1 || b.Trouble() == nil {
			t.Errorf("a change of the shared store on a full disk: %v, %+v, trouble %v", err, b.Set(), b.Trouble())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.Run(ctx)
		time.Sleep(3 * retryWrite)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || d.writes.Load() < 4 {
			t.Errorf("%d writes on a full disk: %v", d.writes.Load(), err)
		}
		d.full.Store(false)
		time.Sleep(2 * retryWrite)
		if again := open(t, path, d); b.Trouble() != nil || len(again.Set().Active(noon)) != 1 {
			t.Errorf("afterwards the trouble is %v and the file has %+v", b.Trouble(), again.Set())
		}
		cancel()
		synctest.Wait()
	})
}

// The shared store: nothing ends because it is away, empty or unreadable; a change
// is made on what it holds and not on what is known here; the agent's own record
// never goes there.
func TestSharedStore(t *testing.T) {
	s := new(shelf)
	path := filepath.Join(t.TempDir(), "maintenance.json")
	a, b := open(t, path, new(disk)), open(t, path+"2", new(disk))
	select {
	case <-a.Heard():
		t.Error("a store that was not asked has been heard")
	default:
	}
	if err := a.Confirm(t.Context()); err == nil {
		t.Error("before the store is named all is known")
	}
	for _, x := range []*Book{a, b} {
		x.Share(s)
	}
	change := func(x *Book, t2 Target) {
		t.Helper()
		if err := x.Change(t.Context(), t2, takeOut(t2)); err != nil {
			t.Fatal(err)
		}
	}
	n3 := Target{Cluster: "main", Node: "n3"}
	change(a, n2)
	change(b, Agent)
	change(b, n3) // b has not been told of n2
	if got := b.Set().Active(noon); len(got) != 3 || strings.Count(string(s.text), `"since"`) != 2 {
		t.Errorf("b knows %+v, the store has %s", got, s.text)
	}
	if err := a.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	<-a.Heard()
	if got := a.Set().Active(noon); len(got) != 2 {
		t.Errorf("a knows %+v", got)
	}
	for _, text := range []string{"", `{"version": 1, "records": []}`, `{"version": 9}`, "no JSON"} {
		a.Take([]byte(text))
		if got := a.Set().Active(noon); len(got) != 2 {
			t.Errorf("after %q a knows %+v", text, got)
		}
	}
	if a.Trouble() == nil {
		t.Error("an unreadable store is no trouble")
	}
	a.Take([]byte(`{"version": 1, "records": [{"since": "2026-11-30T12:00:00Z", "revision": 99}]}`))
	if r, in := a.Set().In(noon); in {
		t.Errorf("another agent's record of itself is taken: %+v", r)
	}
	s.text, s.away = nil, errors.New("away")
	if err := a.Change(t.Context(), n2, func(x Set) (Set, bool) { x, _, ok := x.End(n2, "", noon); return x, ok }); err == nil || len(a.Set().Active(noon)) != 2 {
		t.Errorf("a change while the store is away: %v", err)
	}
	if again := open(t, path, new(disk)); len(again.Set().Active(noon)) != 2 {
		t.Errorf("after a restart a knows %+v", again.Set())
	}
	if err := a.Confirm(t.Context()); err == nil || !strings.Contains(err.Error(), "the shelf: away") {
		t.Errorf("without the store all is known: %v", err)
	}
	s.away = nil
	change(a, Target{Cluster: "other"})
	if strings.Count(string(s.text), `"since"`) != 3 {
		t.Errorf("what the store lost is not written back: %s", s.text)
	}
	s.text = []byte("no JSON")
	if err := a.Confirm(t.Context()); err == nil {
		t.Error("with an unreadable store all is known")
	}
	if err := a.Change(t.Context(), n3, takeOut(Target{Cluster: "x"})); err == nil || string(s.text) != "no JSON" {
		t.Errorf("an unreadable store is overwritten: %v", err)
	}
}

// An empty file is what a crash of the disk leaves, and is set aside as any other.
func TestUnusableFile(t *testing.T) {
	for _, text := range []string{"", "{", `{"version": 9}`} {
		path := filepath.Join(t.TempDir(), "maintenance.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := open(t, path, new(disk))
		kept, err := os.ReadFile(path + ".corrupt")
		if err != nil || string(kept) != text || b.Trouble() == nil {
			t.Errorf("%q: %v, trouble %v", text, err, b.Trouble())
		}
	}
}

// What happens to sessions: other words leave it, either way to end them takes the
// place of the other one, and it lies in the document.
func TestSessionsOfARecord(t *testing.T) {
	drained := Sessions{ID: "x", By: "here", Deadline: noon.Add(time.Hour), EndIdle: true, Terminate: true}
	s, _, _ := Set{}.Start(Record{Target: n2, DrainUntil: noon.Add(time.Minute)}, noon)
	for i, step := range []struct {
		r    Record
		want Record
	}{
		{Record{Sessions: drained}, Record{Sessions: drained}},
		{Record{Reason: "disk"}, Record{Sessions: drained}},
		{Record{DrainUntil: noon.Add(time.Hour)}, Record{DrainUntil: noon.Add(time.Hour)}},
		{Record{Reason: "kernel"}, Record{DrainUntil: noon.Add(time.Hour)}},
		{Record{Sessions: drained}, Record{Sessions: drained}},
	} {
		step.r.Target = n2
		s, _, _ = s.Start(step.r, noon)
		if r, _ := s.Get(n2); r.Sessions != step.want.Sessions || !r.DrainUntil.Equal(step.want.DrainUntil) {
			t.Errorf("step %d: %+v", i, r)
		}
	}
	text, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(text)
	if r, _ := again.Get(n2); err != nil || r.Sessions != drained {
		t.Errorf("%v: %+v of %s", err, r, text)
	}
	for _, bad := range []Sessions{{ID: "x"}, {ID: "x\n", Deadline: noon}, {ID: "x", By: strings.Repeat("x", maxText+1), Deadline: noon}} {
		if err := (Record{Target: n2, Since: noon, Sessions: bad}).Check(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
