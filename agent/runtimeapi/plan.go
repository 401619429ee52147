package runtimeapi

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// server is a server of HAProxy.
type server struct {
	backend, name string
}

func (s server) String() string { return s.backend + "/" + s.name }

// want is the state that a server shall have.
type want struct {
	verdict topology.Verdict
	weight  int
	guard   bool
}

// step brings one server into its state.
type step struct {
	server
	want
	commands []string
	cluster  string
	gone     bool // no longer listed: told once, and forgotten
}

// desired returns the state of every server of a cluster; what is undecided is
// left out.
func desired(o *Options, s *topology.Snapshot) map[server]want {
	out := make(map[server]want)
	for _, p := range s.Pools {
		backend := o.Names(s.Cluster, p.Pool)
		for _, n := range p.Nodes {
			if w := wantOf(n); w.verdict != topology.Undecided {
				out[server{backend, n.Node}] = w
			}
		}
		if guard := o.Guards(s.Cluster, p); guard != "" {
			if v := s.Guard(p); v != topology.Undecided {
				out[server{guard, "g"}] = want{verdict: v, guard: true}
			}
		}
	}
	return out
}

func wantOf(n topology.NodeVerdict) want {
	w := want{verdict: n.Verdict}
	if n.Verdict == topology.Up {
		w.weight = min(max(n.Weight, 1), 100)
	}
	return w
}

// plan returns the steps from what a socket has confirmed to what a snapshot
// wants. A server that a complete snapshot no longer lists goes down; while some
// of its nodes are undecided they are listed, so they do not count as gone.
func plan(o *Options, s *topology.Snapshot, confirmed map[server]want) []step {
	wanted := desired(o, s)
	var steps []step
	for srv, w := range wanted {
		if confirmed[srv] != w {
			steps = append(steps, newStep(s.Cluster, srv, w))
		}
	}
	listed := listedServers(o, s)
	for srv, w := range confirmed {
		if s.Complete && !listed[srv] && !w.guard {
			st := newStep(s.Cluster, srv, want{verdict: topology.Down})
			st.gone = true
			steps = append(steps, st)
		}
	}
	return steps
}

func listedServers(o *Options, s *topology.Snapshot) map[server]bool {
	out := make(map[server]bool)
	for _, p := range s.Pools {
		for _, n := range p.Nodes {
			out[server{o.Names(s.Cluster, p.Pool), n.Node}] = true
		}
	}
	return out
}

func newStep(cluster string, srv server, w want) step {
	return step{server: srv, want: w, cluster: cluster, commands: commands(srv, w)}
}

// commands brings a server into a state, whatever its state is: HAProxy's own
// agent checks may have moved it meanwhile. The weight stands before "agent up",
// so that a server never comes in with the weight of its past; sessions are ended
// after "agent down", since "shutdown sessions" alone lets new ones in.
func commands(srv server, w want) []string {
	set := "set server " + srv.String()
	switch {
	case w.guard:
		return []string{set + " agent " + w.verdict.String()}
	case w.verdict == topology.Down:
		return []string{set + " agent down", "shutdown sessions server " + srv.String()}
	}
	return []string{set + " weight " + strconv.Itoa(w.weight) + "%", set + " agent up"}
}

// phase orders steps: close guards, take out, drain, bring in, open guards.
func (s step) phase() int {
	switch {
	case s.guard && s.verdict == topology.Up:
		return 0
	case s.guard:
		return 4
	case s.verdict == topology.Down:
		return 1
	case s.verdict == topology.Drain:
		return 2
	}
	return 3
}

// inOrder sorts steps by phase, and by name within one.
func inOrder(steps []step) {
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(a.phase()-b.phase(), cmp.Compare(a.backend, b.backend), cmp.Compare(a.name, b.name))
	})
}

// chunks cuts steps into requests that fit HAProxy's buffer (16 kB by default,
// which the whole line must fit).
func chunks(steps []step) [][]step {
	const most = 8000
	var out [][]step
	size := most
	for _, s := range steps {
		n := 0
		for _, c := range s.commands {
			n += len(c) + 1
		}
		if size+n > most {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], s)
		size += n
	}
	return out
}
