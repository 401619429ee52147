package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// electedWithin bounds what the monitor of a lab takes to decide, all its keepers to
// obey, and the agent to follow.
const electedWithin = 30 * time.Second

// TestAutoFailoverLeftOver: nodes that must not be promoted are not, however few are
// left; a node that is dropped goes for good; and a monitor that was away while the
// primary died still waits for its grace before anybody is named.
func TestAutoFailoverLeftOver(t *testing.T) {
	p := newAutoRig(t, 3)
	p.settled("n1", "n2", "n3")
	p.step("priority 0", func() {
		p.priority("n3", 0)
		p.until("n3 to have the tag", func() bool { return p.tag("n3", topology.TagNoFailover) == "true" })
		p.settled("n1", "n2", "n3") // it serves readers all the same
		p.do(p.auto.Decide(p.t.Context(), "perform_failover('default', 0)"))
		p.settled("n2", "n1", "n3")
	})
	p.step("nobody left may be promoted", func() {
		p.priority("n1", 0)
		p.settled("n2", "n1", "n3")
		p.do(p.auto.Node("n2").Kill())
		p.do(p.auto.WaitStates(p.t.Context(), "n1=report_lsn", "n3=report_lsn"))
		p.during(2*time.Second, "nobody is up for writes", func() bool {
			writes, _ := p.view("main").Snapshot.Pool("primary")
			return only(writes)
		})
		p.within(electedWithin, "explain to say why nobody is promoted", func() bool {
			return strings.Contains(p.explain("main", "n2"), "promotion nobody: n1 has candidate priority 0, n3 has candidate priority 0\n")
		})
		p.t.Log(p.explain("main", "n2"))
		p.is("main", "replica", "n1", topology.Drain, "")
		p.is("main", "replica", "n3", topology.Drain, "")
		p.priority("n1", 50)
		took := p.within(electedWithin, "n1 to be the writer", func() bool { return p.view("main").Snapshot.Writer == "n1" })
		p.t.Logf("a candidate again to writer: %s", took)
		p.do(p.auto.Node("n2").Start(p.t.Context()))
		p.settled("n1", "n2", "n3")
	})
	p.step("a node is dropped", func() {
		p.do(p.auto.Decide(p.t.Context(), fmt.Sprintf("remove_node('127.0.0.1', %d)", p.auto.Node("n3").Port())))
		took := p.within(electedWithin, "n3 to be out of the pools", func() bool {
			v, _ := p.verdict("main", "replica", "n3")
			return v != topology.Up
		})
		p.t.Logf("dropped to out: %s", took)
		p.within(electedWithin, "the monitor to forget n3", func() bool {
			states, err := p.auto.States(p.t.Context())
			return err == nil && len(states) == 2
		})
		// It stays listed for five minutes, since a node in a balancer's file is a reload.
		p.is("main", "replica", "n3", topology.Down, topology.CodeRefused)
		p.settled("n1", "n2")
	})
	p.step("the monitor is away while the primary dies", p.monitorAway)
}

func (p *autoRig) monitorAway() {
	// Long enough for the agent to read the monitor meanwhile.
	p.do(p.auto.Monitor().Exec(p.t.Context(), "pg_auto_failover", "ALTER SYSTEM SET pgautofailover.startup_grace_period = '6s'"))
	p.do(p.auto.Monitor().Stop(p.t.Context()))
	p.until("the authority to be lost", func() bool { return p.view("main").Snapshot.Authority.State == topology.AuthorityStateLost })
	p.do(p.auto.Node("n1").Kill())
	p.is("main", "primary", "n1", topology.Down, "")
	p.during(time.Second, "nobody new is let in while the monitor is away", func() bool {
		writes, _ := p.view("main").Snapshot.Pool("primary")
		return only(writes)
	})
	p.do(p.auto.Monitor().Start(p.t.Context()))
	begin := time.Now()
	p.within(electedWithin, "explain to say that the monitor's grace lasts", func() bool {
		return strings.Contains(p.explain("main", "n1"), "its grace after a start lasts")
	})
	p.t.Log(p.explain("main", "n1"))
	p.within(electedWithin, "n2 to be the writer", func() bool { return p.view("main").Snapshot.Writer == "n2" })
	p.t.Logf("monitor back to the new writer: %s", time.Since(begin))
	p.is("main", "primary", "n1", topology.Down, "")
	p.do(p.auto.Node("n1").Start(p.t.Context()))
	p.settled("n2", "n1")
}

// priority sets a node's candidate priority.
func (p *autoRig) priority(node string, to int) {
	p.t.Helper()
	p.do(p.auto.Decide(p.t.Context(), fmt.Sprintf("set_node_candidate_priority('default', '%s', %d)", node, to)))
}

// tag is a tag of a node, "" for none.
func (p *autoRig) tag(node, name string) string {
	for _, n := range p.view("main").Snapshot.Nodes {
		if n.Name == node {
			return n.Tags[name]
		}
	}
	return ""
}
