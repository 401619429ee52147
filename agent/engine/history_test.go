package engine

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// history is a world whose observations travel, whose clock is set, and whose
// agent is restarted, with the model of the writer rule beside its engine.
type history struct {
	*world
	model *model
	// check sees every decision after the model has.
	check func(*topology.Snapshot)
}

// travels are the kinds of events that only a history knows.
var travels = []string{
	"late", "late", "lateAuthority", "lose", "loseAuthority", "again", "stamps", "inTime",
	"wall", "wallBack", "restart", "coldStart", "swap", "unlist", "list", "tag", "standstill", "standstill", "key",
	"closed", "ajar",
}

// historyKinds has enough time in it that most of what happens is noticed.
var historyKinds = slices.Concat(kinds, travels, slices.Repeat([]string{"run"}, 25))

// drawSteps draws about half of so many steps.
func drawSteps(t *rapid.T, atMost int) []event {
	return drawBlocks(t, func(t *rapid.T) event {
		e := drawEvent(t)
		e.Kind = rapid.SampledFrom(historyKinds).Draw(t, "step")
		return e
	}, atMost)
}

// drawHistory is one under a random policy that has just begun, or has run for a while.
func drawHistory(t *rapid.T) *history {
	h := newHistory(t, rapid.SampledFrom([]topology.AuthorityKind{patroni, none}).Draw(t, "authority"))
	h.p.AuthorityLost = rapid.SampledFrom([]topology.AuthorityLost{topology.LostHold, topology.LostSQLOnly}).Draw(t, "lost")
	h.p.HoldMax = rapid.SampledFrom([]time.Duration{0, 0, 10 * sec}).Draw(t, "hold_max")
	if rapid.Bool().Draw(t, "warm") {
		h.run(3 * sec)
	}
	return h
}

func newHistory(t tb, kind topology.AuthorityKind) *history {
	h := &history{world: newWorld(t, kind)}
	h.start(nil)
	return h
}

// start begins a process of the agent, with what an earlier one left.
func (h *history) start(saved *topology.Saved) {
	h.seq, h.post = make(map[topology.SourceID]uint64), newPost()
	h.model = follow(h.world, saved)
	h.onFold = h.model.fold
	h.onDecide = func(s *topology.Snapshot) {
		h.model.judge(s)
		if h.check != nil {
			h.check(s)
		}
	}
	h.begin(saved)
}

// saved is what the agent writes down, and reads at its next start.
func (h *history) saved() *topology.Saved {
	text, err := json.Marshal(h.s.Save(h.now))
	var s topology.Saved
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		h.t.Fatalf("saved state: %v", err)
	}
	return &s
}

// play plays one step and decides after it.
func (h *history) play(e event) {
	if !slices.Contains(travels, e.Kind) {
		h.apply(e)
		return
	}
	h.pass(ms)
	switch e.Kind {
	case "late":
		h.post.late[pgSource(e.Node)] = e.Wait / 4
	case "lateAuthority":
		h.post.late[consulSource] = e.Wait / 4
	case "lose":
		h.post.lose[pgSource(e.Node)] = int(e.TL)
	case "loseAuthority":
		h.post.lose[consulSource] = int(e.TL * e.TL) // for longer than authority_max_age, it may be
	case "again":
		h.post.again = e.Wait / 4
	case "stamps":
		h.post.stamps = true
	case "inTime":
		h.post.again, h.post.stamps = 0, false
		clear(h.post.late)
	case "standstill":
		h.pass(e.Wait)
		if e.TL%2 == 0 { // what came meanwhile is folded before the first decision; else after it
			h.post.deliver(h.world)
		}
	case "closed", "ajar":
		h.refuse(e)
	default:
		h.disturb(e)
	}
	h.decide()
}

// refuse has a node refuse twice within a moment, or with a sign of life between,
// and answer soon after.
func (h *history) refuse(e event) {
	h.fail(e.Node, topology.FailRefused, topology.ProbeFull)
	if h.pass(min(e.Wait, 300*ms)); e.Kind == "ajar" {
		h.fail(e.Node, e.Class, topology.ProbeFull)
		h.pass(min(e.Wait, 300*ms))
	}
	h.fail(e.Node, topology.FailRefused, topology.ProbeFull)
	if e.TL%2 == 0 {
		h.decide()
	}
	h.pass(2 * ms)
	h.ask(e.Node)
}

// disturb changes clocks, processes, lists and keys.
func (h *history) disturb(e event) {
	switch e.Kind {
	case "wall":
		h.now.Wall = h.now.Wall.Add(e.Wait * time.Duration(e.TL))
	case "wallBack":
		h.now.Wall = h.now.Wall.Add(-e.Wait * time.Duration(e.TL))
	case "restart":
		saved := h.saved()
		h.pass(e.Wait / 10)
		h.start(saved)
	case "coldStart":
		h.start(nil)
	case "swap": // two nodes change their addresses
		names := slices.Sorted(maps.Keys(h.servers))
		a, b := h.truth(e.Node), h.truth(names[(slices.Index(names, e.Node)+1)%len(names)])
		a.Address, b.Address = b.Address, a.Address
		h.listNodes()
	case "unlist":
		nodes := slices.DeleteFunc(h.s.Nodes(), func(n topology.Node) bool { return n.Name == e.Node })
		h.fold(fileSource, topology.Observation{Nodes: &topology.NodeList{Nodes: nodes, ConfirmedEmpty: true}})
	case "list":
		h.listNodes()
	case "tag":
		h.tagged(e.Node, topology.TagNoFailover, "true")
	case "key": // the initialize key, damaged or of a cluster that was built anew
		h.authority.SystemID = []uint64{0, ownID, 666}[e.TL%3]
	}
}

// TestModel holds the engine against the model: in many short histories, and in
// a few of thousands of steps.
func TestModel(t *testing.T) {
	play := func(steps int) func(*rapid.T) {
		return func(t *rapid.T) {
			h := drawHistory(t)
			for _, e := range drawSteps(t, steps) {
				h.play(e)
			}
		}
	}
	t.Run("short", func(t *testing.T) {
		atLeast(t, 200)
		rapid.Check(t, play(120))
	})
	t.Run("long", func(t *testing.T) {
		fewer(t, 20)
		rapid.Check(t, play(6000))
	})
}
