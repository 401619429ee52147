package engine

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// event is one step of a random history. It is plain data, so that the same
// history can be replayed with variations, and a failing one reads well.
type event struct {
	Kind  string
	Node  string
	TL    topology.Timeline
	Class topology.FailureClass
	Wait  time.Duration
}

func (e event) String() string {
	return fmt.Sprintf("{%q %q %d %q %s}", e.Kind, e.Node, e.TL, e.Class, e.Wait)
}

var (
	silentClasses = []topology.FailureClass{
		topology.FailTimeout, topology.FailUnreachable, topology.FailName, topology.FailLost, topology.FailShutdown,
		topology.FailRefused, topology.FailReset, topology.FailStarting,
	}
	aliveClasses = []topology.FailureClass{
		topology.FailTLS, topology.FailAuth, topology.FailDatabase, topology.FailSlots, topology.FailProtocol,
	}
	allClasses = append(append([]topology.FailureClass{topology.FailLocal}, silentClasses...), aliveClasses...)
)

// kinds of events; a kind that is listed more often is drawn more often.
var kinds = []string{
	"run", "run", "run", "run", "run", "idle",
	"promote", "promote", "demote", "demote", "readonly", "foreign", "fails", "fails", "answers", "answers",
	"unreceived", "heard", "behind", "paused",
	"ask", "roleTick", "login", "fail", "fail", "failLogin",
	"leader", "leader", "leader", "noLeader", "session", "pause", "standbyCluster", "optime", "unheard", "heardAgain",
	"leaderAsked", "maintenance", "noMaintenance", "address", "isolated", "notIsolated", "standstill",
}

func drawEvent(t *rapid.T) event {
	return event{
		Kind:  rapid.SampledFrom(kinds).Draw(t, "kind"),
		Node:  rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node"),
		TL:    topology.Timeline(rapid.IntRange(4, 7).Draw(t, "timeline")),
		Class: rapid.SampledFrom(allClasses).Draw(t, "class"),
		Wait:  time.Duration(rapid.SampledFrom([]int{1, 10, 60, 300, 1000, 2100, 3500, 11000, 21000}).Draw(t, "ms")) * ms,
	}
}

func drawEvents(t *rapid.T, atMost int) []event {
	return drawBlocks(t, drawEvent, atMost)
}

// drawBlocks draws about half of so many events. One slice alone would be of five
// on the average, whatever its bound; a slice of slices shrinks as well.
func drawBlocks(t *rapid.T, draw func(*rapid.T) event, atMost int) []event {
	const block = 10 // five on the average
	n := max(1, atMost/block)
	blocks := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(draw), 0, block), n, n).Draw(t, "events")
	return slices.Concat(blocks...)
}

// drawWorld is a world under a random policy that has run for a while, or not.
func drawWorld(t *rapid.T) func() *world {
	kind := rapid.SampledFrom([]topology.AuthorityKind{patroni, none}).Draw(t, "authority")
	lost := rapid.SampledFrom([]topology.AuthorityLost{topology.LostHold, topology.LostSQLOnly}).Draw(t, "lost")
	warm := rapid.Bool().Draw(t, "warm")
	return func() *world {
		w := newWorld(t, kind)
		w.p.AuthorityLost = lost
		if warm {
			w.run(3 * sec)
		}
		return w
	}
}

// apply plays one event and decides after it.
func (w *world) apply(e event) {
	w.pass(ms)
	switch e.Kind {
	case "run":
		w.run(e.Wait)
	case "idle":
		w.idle(e.Wait)
	case "standstill": // the agent's own clock stands still, nobody decides
		w.pass(e.Wait)
	case "ask":
		w.ask(e.Node)
	case "roleTick":
		w.roleTick(e.Node)
	case "login":
		w.login(e.Node)
	case "fail":
		w.fail(e.Node, e.Class, topology.ProbeFull)
	case "failLogin":
		w.fail(e.Node, e.Class, topology.ProbeLogin)
	case "isolated":
		w.fold(localSource, topology.Observation{Local: &topology.Local{Isolated: topology.Yes}})
	case "notIsolated":
		w.fold(localSource, topology.Observation{Local: &topology.Local{Isolated: topology.No}})
	default:
		w.applyTruth(e)
	}
	w.decide()
}

// applyTruth changes the truth about nodes; the next probe will tell.
func (w *world) applyTruth(e event) {
	p := w.truth(e.Node)
	switch e.Kind {
	case "promote":
		w.become(e.Node, primary(e.TL))
	case "demote":
		w.become(e.Node, standby(e.TL))
	case "readonly":
		p.ReadOnly = topology.Yes
	case "foreign":
		p.SystemID = 666
	case "fails":
		w.fails(e.Node, e.Class)
	case "answers":
		w.answers(e.Node)
	case "unreceived":
		p.Receiver.Running, p.Receiver.Streaming = topology.No, topology.No
	case "heard":
		p.Receiver.MessageAge = 50 * ms
	case "behind":
		p.ReplayLSN = topology.LSN(e.TL) * 1_000_000
		w.truth("a").WriteLSN = 1 << 30
	case "paused":
		p.ReplayPaused = topology.Yes
	case "address":
		p.Address.Port++
		w.listNodes()
	case "maintenance":
		w.m.Records = []topology.MaintenanceRecord{{Node: e.Node, Reason: "test", Until: w.now.Wall.Add(e.Wait)}}
	case "noMaintenance":
		w.m.Records = nil
	default:
		w.applyAuthority(e)
	}
}

func (w *world) applyAuthority(e event) {
	a := &w.authority
	switch e.Kind {
	case "leader":
		a.Leader = e.Node
	case "leaderAsked":
		a.Leader = e.Node
		w.askAuthority()
	case "noLeader":
		a.Leader = ""
	case "session":
		a.SessionAgrees = topology.Tri(e.TL % 3)
	case "pause":
		a.Pause = topology.Tri(e.TL % 3)
	case "standbyCluster":
		a.StandbyCluster = e.TL == 7
	case "optime":
		switch e.TL {
		case 7:
			a.OptimeIndex = 0
		case 6:
			a.OptimeIndex /= 2
		default:
			a.OptimeIndex++
		}
	case "unheard":
		w.unheard = topology.FailStore
		w.askAuthority()
	case "heardAgain":
		w.unheard = ""
	default:
		w.t.Fatalf("event %q is not known", e.Kind)
	}
}
