package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestSaveFollows: what is saved is always made of the state of now, though most
// calls return what an earlier one made.
func TestSaveFollows(t *testing.T) {
	w := settled(t, patroni)
	for _, step := range []struct {
		name   string
		happen func()
	}{
		{"nothing", func() {}},
		{"nothing again", func() {}},
		{"a timeline", func() { w.s.learnTimeline(w.s.systemID, 77) }},
		{"a loss", func() { w.s.lost["b"] = w.now }},
		{"another time of it", func() { w.s.lost["b"] = topology.Clock{Mono: w.now.Mono, Wall: w.now.Wall.Add(sec)} }},
		{"another node's", func() { delete(w.s.lost, "b"); w.s.lost["c"] = w.now }},
		{"an identifier", func() { w.s.systemID++ }},
		{"a writer", func() { w.s.holder.name = "b" }},
		{"a tag", func() { w.tagged("c", "zone", "x") }},
		{"a decision", func() { w.fail("c", topology.FailStarting, topology.ProbeFull); w.run(3 * sec) }},
		{"the end of the timeline's memory", func() { w.s.ForgetTimeline() }},
	} {
		before := w.s.Save(w.now)
		step.happen()
		got, want := w.s.Save(w.now), w.s.save(w.now)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("after %s (-made now, +saved):\n%s", step.name, d)
		}
		if before.SavedAt = want.SavedAt; step.name[:3] != "not" && cmp.Equal(before, want) {
			t.Errorf("%s makes no difference, so nothing was tested", step.name)
		}
	}
	if n := testing.AllocsPerRun(100, func() { w.s.Save(w.now) }); n > 0 {
		t.Errorf("a call that makes nothing new allocates %v times", n)
	}
}
