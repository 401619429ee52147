package runtimeapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// at gives the nodes of a pool addresses, by the last number of 10.0.0.x.
func at(p topology.PoolVerdicts, last ...int) topology.PoolVerdicts {
	for i := range p.Nodes {
		p.Nodes[i].Address = topology.Address{Host: fmt.Sprintf("10.0.0.%d", last[i]), Port: 5432}
	}
	return p
}

// A verdict belongs to an address: a server that HAProxy still has at another one is
// down whatever its node is, until HAProxy has the new address.
func TestServerAtAnotherAddressIsDown(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		primary := func(last ...int) topology.PoolVerdicts {
			return at(pool("primary", topology.ModeWrite, down, up), last...)
		}
		show(views, snapshot(1, 1, primary(1, 2)))
		if got := f.heard(); len(got) != 5 || f.looks != 1 {
			t.Fatalf("told %q after %d looks", got, f.looks)
		}
		show(views, snapshot(2, 2, primary(2, 1))) // swapped, and HAProxy's file is not in place
		want := []string{"set server be_main_primary/n2 agent down", "shutdown sessions server be_main_primary/n2"}
		if diff := cmp.Diff(want, f.heard()); diff != "" {
			t.Error("at the old address:", diff)
		}
		if st := p.Status()[0]; st.Err != nil || st.Applied["main"] != 1 {
			t.Errorf("a change that may be under way: %+v", st)
		}
		f.set(func() { f.pid++ }) // restarted, with the same file
		time.Sleep(11 * time.Second)
		for _, c := range f.heard() {
			if strings.Contains(c, "agent up") && !strings.Contains(c, "guard") {
				t.Errorf("a new process with the old address is told %q", c)
			}
		}
		if st := p.Status()[0]; st.Err == nil || !strings.Contains(st.Err.Error(), "be_main_primary/n2 at 10.0.0.2:5432, its node is at 10.0.0.1:5432") &&
			!strings.Contains(st.Err.Error(), "be_main_primary/n1 at 10.0.0.1:5432, its node is at 10.0.0.2:5432") {
			t.Errorf("an address that does not come is no error: %+v", st)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log)
		}
		f.set(func() {
			f.pid, f.at = f.pid+1, map[string]string{"be_main_primary/n1": "10.0.0.2", "be_main_primary/n2": "10.0.0.1"}
		})
		time.Sleep(300 * time.Millisecond)
		if got := f.heard(); f.state["be_main_primary/n2"] != "agent up" || p.Status()[0].Err != nil || p.Status()[0].Applied["main"] != 2 {
			t.Errorf("with the new address it is told %q, status %+v", got, p.Status()[0])
		}
	})
}

// The address counts as it is at the moment of the push: a node that moves back, or
// whose server an operator moved, is told as HAProxy has it.
func TestAddressThatCameBack(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		primary := func(last int) topology.PoolVerdicts { return at(pool("primary", topology.ModeWrite, up), last) }
		show(views, snapshot(1, 1, primary(7)))
		f.heard()
		if got := f.state["be_main_primary/n1"]; got != "agent down" {
			t.Errorf("a first push to another address: %s", got)
		}
		f.set(func() { f.at = map[string]string{"be_main_primary/n1": "10.0.0.7"} }) // by hand
		time.Sleep(5 * time.Second)
		f.heard()
		if got := f.state["be_main_primary/n1"]; got != "agent up" {
			t.Errorf("at the right address: %s", got)
		}
		looks := f.looks
		for g := range uint64(4) {
			show(views, snapshot(2+g, 2+g, at(pool("primary", topology.ModeWrite, down), 7)))
			f.heard()
			show(views, snapshot(12+g, 12+g, primary(7)))
			f.heard()
		}
		if f.looks != looks {
			t.Errorf("plain changes of role asked %d times for the servers", f.looks-looks)
		}
		show(views, snapshot(30, 30, primary(1)))
		f.heard()
		if got := f.state["be_main_primary/n1"]; got != "agent down" {
			t.Errorf("moved back: %s", got)
		}
		_ = p.sockets[0].members.one(func() error { // Bring moves it on; what was read before does not hold
			f.set(func() { f.at = map[string]string{"be_main_primary/n1": "10.0.0.9"} })
			return nil
		})
		show(views, snapshot(31, 31, primary(7)))
		if f.heard(); f.state["be_main_primary/n1"] != "agent down" {
			t.Errorf("at an address that Bring changed: %s", f.state["be_main_primary/n1"])
		}
		show(views, snapshot(32, 32, primary(9)))
		if f.heard(); f.state["be_main_primary/n1"] != "agent up" {
			t.Errorf("at that address: %s", f.state["be_main_primary/n1"])
		}
		show(views, snapshot(33, 33, at(pool("primary", topology.ModeWrite, down), 9)))
		f.heard()
		f.set(func() { f.pid, f.at = 2, nil })    // restarted on another file,
		show(views, snapshot(34, 34, primary(9))) // in the moment of a change
		if f.heard(); f.state["be_main_primary/n1"] != "agent down" {
			t.Errorf("a new process with another address: %s", f.state["be_main_primary/n1"])
		}
	})
}

// A server that is not there yet, or that Bring took out, is told nothing, no
// "state ready" above all, and is no failure while Bring may come.
func TestServerThatBringWillAdd(t *testing.T) {
	bubbleOf(t, Options{Ready: true}, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		f.set(func() {
			f.missing = map[string]bool{"be_main_replica/n2": true}
			f.retired = map[string]bool{"be_main_replica/n3": true}
		})
		show(views, snapshot(1, 1, replicas(up, up, up)))
		time.Sleep(8 * time.Second)
		for _, c := range f.heard() {
			if !strings.Contains(c, "/n1 ") {
				t.Errorf("told %q", c)
			}
		}
		if st := p.Status()[0]; st.Err != nil || len(st.Applied) != 0 || strings.Contains(log.String(), "WARN") {
			t.Errorf("status %+v\n%s", st, log)
		}
		f.set(func() { f.missing = nil; clear(f.retired) })
		_ = p.sockets[0].members.one(func() error { return nil })
		p.sockets[0].sayAgain()
		f.heard()
		if got := f.state["be_main_replica/n2"] + f.state["be_main_replica/n3"]; got != "state readystate ready" || p.Status()[0].Applied["main"] != 1 {
			t.Errorf("after Bring: %q, %+v", got, p.Status()[0])
		}

		f.set(func() { f.pid, f.retired = 2, map[string]bool{"be_main_replica/n3": true} })
		time.Sleep(16 * time.Second)
		if got := f.heard(); slices.Contains(got, "set server be_main_replica/n3 state ready") {
			t.Errorf("the MAINT of a server that was taken out is lifted: %q", got)
		}
		if st := p.Status()[0]; st.Err == nil || !strings.Contains(st.Err.Error(), "agent checks are not enabled") {
			t.Errorf("a server that nobody adds is no failure: %+v", st)
		}
	})
}
