package engine

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// checkTexts holds every reason to what topology.Reason promises.
func checkTexts(t tb, s *topology.Snapshot) {
	t.Helper()
	reasons := s.Alarms
	for _, p := range s.Pools {
		for _, n := range p.Nodes {
			if len(n.Reasons) == 0 {
				t.Fatalf("%s in %s has no reason\n", n.Node, p.Pool)
			}
			reasons = append(reasons, n.Reasons...)
		}
	}
	for _, r := range reasons {
		bad := func(c rune) bool { return !unicode.IsPrint(c) || c == ',' }
		if r.Text == "" || len(r.Text) > 80 || !utf8.ValidString(r.Text) || strings.ContainsFunc(r.Text, bad) {
			t.Fatalf("%s: text %q is not printable, has a comma or is too long", r.Code, r.Text)
		}
		if r.Code.Info().Code != r.Code {
			t.Fatalf("code %q is not in the closed list", r.Code)
		}
		if r.Since.IsZero() {
			t.Fatalf("%s: no since", r.Code)
		}
	}
}

// TestTextsFromOutside: names and an operator's words are not ours.
func TestTextsFromOutside(t *testing.T) {
	w := settled(t, patroni)
	w.onDecide = func(s *topology.Snapshot) { checkTexts(t, s) }
	long := strings.Repeat("ä,\r\n%s", 30)
	w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: long, Since: w.now.Wall}}
	w.run(sec)
	pool, _ := w.snap.Pool("replica")
	if v, _ := pool.Verdict("b"); !strings.HasPrefix(v.Reason().Text, "ä;") {
		t.Errorf("an operator's word became %q", v.Reason().Text)
	}
	w.moveLeader(long, 6)
	w.run(time.Minute)
	w.m.Records[0].Reason = ""
	w.run(sec)
}

// TestWordsOfMaintenance: what an operator says anew is told, and nobody hurries for
// it; other texts change with what they speak of and are told with the next decision.
func TestWordsOfMaintenance(t *testing.T) {
	w := settled(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: "disk", Since: w.now.Wall}}
	first := w.decide()
	w.run(5 * sec)
	if w.decide() != first {
		t.Fatal("the same words make a decision")
	}
	w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: "disk and kernel", Since: w.now.Wall}}
	next := w.decide()
	p, _ := next.Pool("replica")
	v, _ := p.Verdict("b")
	old, _ := first.Pool("replica")
	was, _ := old.Verdict("b")
	if v.Reason().Text != "disk and kernel" || !v.Reason().Since.Equal(was.Reason().Since) {
		t.Errorf("the reason is %+v, was %+v", v.Reason(), was.Reason())
	}
	if next.Generation != first.Generation+1 || next.Urgent != first.Urgent || next.Hash != first.Hash || !p.ChangedAt.Equal(old.ChangedAt) {
		t.Errorf("generation %d urgent %d hash %s after %d, %d, %s", next.Generation, next.Urgent, next.Hash, first.Generation, first.Urgent, first.Hash)
	}
}
