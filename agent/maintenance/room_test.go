package maintenance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// consulMost is how large a value in Consul may be, in bytes.
const consulMost = 512 << 10

// numbered is a node of a large fleet.
func numbered(i int) Target { return Target{Cluster: "main", Node: fmt.Sprintf("n%05d", i)} }

// wordy is a record with all that one may have.
func wordy(t Target, since time.Time) Record {
	return Record{
		Target: t, Since: since, Until: since.Add(time.Hour), Reason: strings.Repeat("why ", 50), Who: "ann", Revision: since.UnixMilli(),
		Sessions: Sessions{ID: strings.Repeat("X", 26), By: "db1.example.org", Deadline: since.Add(time.Minute), EndIdle: true, Terminate: true},
	}
}

func drainedAndBack(from, to int, end time.Time) []kept {
	var all []kept
	for i := from; i < to; i++ {
		r := wordy(numbered(i), end.Add(time.Duration(i)*time.Second-24*time.Hour))
		r.EndedAt, r.EndedBy = r.Since.Add(time.Minute), "bob"
		all = append(all, kept{Record: r})
	}
	return all
}

// fleetBook is a book of a shelf, on a clock that stands.
func fleetBook(t *testing.T, s *shelf) *Book {
	t.Helper()
	b := open(t, filepath.Join(t.TempDir(), "maintenance.json"), new(disk))
	b.Share(s)
	return b
}

func putBack(t Target) Edit {
	return func(s Set) (Set, bool) {
		next, _, changed := s.End(t, "ann", noon)
		return next, changed
	}
}

// A document of before, with thousands of nodes that were drained and put back, is read,
// and changes still fit into one value: of what is over only what others must hear is
// kept, and of very many the newest.
func TestManyEndsFit(t *testing.T) {
	const many = 2500
	old := Set{records: append([]kept{{Record: wordy(n2, noon.Add(-time.Minute))}}, drainedAndBack(0, many, noon)...)}
	slices.SortFunc(old.records, func(a, b kept) int { return compare(a.Target, b.Target) })
	text, err := old.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{text: text}
	b := fleetBook(t, s)
	n3 := Target{Cluster: "main", Node: "n3"}
	begin := time.Now()
	for _, step := range []struct {
		t    Target
		edit Edit
		left int
	}{{n2, putBack(n2), 0}, {n3, takeOut(n3), 1}} {
		if err := b.Change(t.Context(), step.t, step.edit); err != nil {
			t.Fatal(err)
		}
		got, err := Decode(s.text)
		if err != nil || len(s.text) > room || bytes.ContainsAny(s.text, "\n") {
			t.Fatalf("%d bytes, %v", len(s.text), err)
		}
		if n := len(got.Active(noon)); n != step.left {
			t.Errorf("%d records hold, want %d", n, step.left)
		}
		if r, ok := got.Get(n2); !ok || r.EndedBy != "ann" || r.Reason != "" || !r.Until.IsZero() || r.Sessions != (Sessions{ID: strings.Repeat("X", 26), Deadline: noon.Add(0)}) {
			t.Errorf("of what was put back there is %+v", r)
		}
		_, oldest := got.Get(numbered(0))
		_, newest := got.Get(numbered(many - 1))
		if n := len(got.records); n < 1500 || oldest || !newest {
			t.Errorf("%d ends are remembered, the oldest: %t, the newest: %t", n, oldest, newest)
		}
	}
	t.Logf("two changes of a document of %d bytes in %s", len(text), time.Since(begin))
	// A copy takes over what another agent says, and does not grow by it either.
	other := fleetBook(t, s)
	text, err = Set{records: drainedAndBack(many, 2*many, noon)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	other.Take(text)
	other.Take(s.text)
	if got, err := other.Set().Compact(); err != nil || len(got) > room || len(other.Set().Active(noon)) != 1 {
		t.Errorf("the copy has %d bytes, %v", len(got), err)
	}
	if r, ok := other.Set().Get(numbered(2*many - 1)); !ok || r.EndedAt.IsZero() {
		t.Error("the newest end is forgotten")
	}
}

// What came to its end by its time is forgotten first: every agent knows that by itself.
// What has only just ended is never forgotten.
func TestWhichEndsAreForgotten(t *testing.T) {
	big := json.RawMessage(`"` + strings.Repeat("x", room/4) + `"`)
	at := func(node string, r Record) kept {
		r.Target = Target{Cluster: "main", Node: node}
		r.Since = noon.Add(-48 * time.Hour)
		return kept{Record: r, foreign: map[string]json.RawMessage{"shape": big}}
	}
	all := []kept{
		at("a", Record{EndedAt: noon.Add(-3 * time.Hour)}),
		at("b", Record{EndedAt: noon.Add(-2 * time.Hour)}),
		at("c", Record{Until: noon.Add(-1 * time.Hour)}),
		at("d", Record{EndedAt: noon.Add(-time.Minute)}),
		at("e", Record{Until: noon.Add(-time.Minute)}),
		at("f", Record{}),
		at("g", Record{Until: noon.Add(time.Hour)}),
	}
	for _, tt := range []struct{ nodes, want string }{
		{"abf", "abf"}, {"abcf", "abf"}, {"abdf", "bdf"}, {"abcdefg", "defg"}, {"abcdf", "bdf"}, {"defg", "defg"},
	} {
		var s Set
		for _, k := range all {
			if strings.Contains(tt.nodes, k.Node) {
				s = s.put(k)
			}
		}
		got := ""
		for _, k := range s.tidy(noon).records {
			got += k.Node
		}
		if got != tt.want {
			t.Errorf("of %s there is %s, want %s", tt.nodes, got, tt.want)
		}
	}
}

// What is over by its time alone is kept whole as long as a slow clock may go by it.
func TestSpentByItsTime(t *testing.T) {
	r := wordy(n2, noon)
	if got := r.spent(r.Until.Add(settled - 1)); got != r {
		t.Errorf("a moment after its end it is %+v", got)
	}
	want := Record{Target: n2, Since: r.Since, Until: r.Until, Revision: r.Revision, Sessions: Sessions{ID: r.Sessions.ID, Deadline: r.Sessions.Deadline}}
	if got := r.spent(r.Until.Add(settled)); got != want || got.Check() != nil {
		t.Errorf("later it is %+v", got)
	}
}

// An end needs no more room than was kept for it, whatever the record and whoever ends
// it, and what is kept can be read.
func TestAnEndNeedsNoMoreRoom(t *testing.T) {
	odd := time.FixedZone("", 5400)
	bare := Record{Target: n2, Since: noon.Add(123456789).In(odd), Revision: noon.UnixMilli()}
	short := bare
	short.Until = bare.Since.Add(time.Millisecond) // within one second
	for name, r := range map[string]Record{"bare": bare, "whole seconds": {Target: n2, Since: noon, Revision: noon.UnixMilli()}, "short": short, "wordy": wordy(n2, noon)} {
		for _, who := range []string{"", "ann", strings.Repeat("a", maxEnder-2), strings.Repeat("a", maxText), strings.Repeat("<", 40), "\x00"} {
			s := Set{}.put(kept{Record: r, foreign: map[string]json.RawMessage{"shape": json.RawMessage(`{"round":true}`)}})
			now := r.Since.Add(time.Microsecond)
			ended, _, changed := s.End(n2, who, now)
			text, err := ended.Compact()
			if err != nil || !changed || len(text) > s.size(now) {
				t.Errorf("%s ended by %.20q: %d bytes of %d, %v", name, who, len(text), s.size(now), err)
			}
			again, err := Decode(text)
			if got, ok := again.Get(n2); err != nil || !ok || got.Active(now) || got.EndedAt.IsZero() || string(again.records[0].foreign["shape"]) != `{"round":true}` {
				t.Errorf("%s ended by %.20q: %v, %s", name, who, err, text)
			}
		}
	}
}

// bare is a set of records without words that needs so much room.
func bare(size int) Set {
	var s Set
	one := kept{Record: Record{Target: numbered(0), Since: noon, Revision: noon.UnixMilli()}}
	for i := range (size - Set{}.size(noon)) / one.size(noon) {
		one.Target = numbered(i)
		s.records = append(s.records, one)
	}
	return s
}

// When what is out fills the value nothing more is taken out, and the answer says so;
// everything can be put back, and changed so that it needs no more.
func TestAFullStoreLetsPutBack(t *testing.T) {
	full := bare(room - 200)
	text, err := full.Compact()
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{text: text}
	b := fleetBook(t, s)
	refused := errors.New("")
	for i := range 2 {
		x := Target{Cluster: "more", Node: fmt.Sprint("n", i)}
		if err := b.Change(t.Context(), x, takeOut(x)); err != nil {
			refused = err
		}
	}
	if !errors.Is(refused, errFull) || !strings.Contains(refused.Error(), "in the shelf: what is out would fill") || !strings.HasSuffix(refused.Error(), "; nothing was changed") || len(s.text) > room {
		t.Errorf("more than fits: %v, %d bytes", refused, len(s.text))
	}
	for i := range 3 {
		if err := b.Change(t.Context(), numbered(i), putBack(numbered(i))); err != nil || len(s.text) > room {
			t.Fatalf("after %d ends: %v, %d bytes", i, err, len(s.text))
		}
	}
	if got, _ := Decode(s.text); len(got.Active(noon)) < 2000 {
		t.Errorf("%d hold", len(got.Active(noon)))
	}
	// A release of before wrote up to Consul's bound: there is no room, and ends fit.
	full = bare(consulMost - 40_000)
	if s.text, err = full.Compact(); err != nil {
		t.Fatal(err)
	}
	if err := b.Change(t.Context(), numbered(9), putBack(numbered(9))); err != nil || len(s.text) > consulMost {
		t.Errorf("beyond the room: %v, %d bytes", err, len(s.text))
	}
	if got, _ := Decode(s.text); !slices.ContainsFunc(got.records, func(k kept) bool { return k.Target == numbered(9) && !k.EndedAt.IsZero() }) {
		t.Error("an end that was just told is forgotten")
	}
}
