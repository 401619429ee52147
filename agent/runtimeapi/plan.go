package runtimeapi

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// server names a server of HAProxy.
type server = haproxycfg.Ref

// want is the state that a server shall have.
type want struct {
	verdict topology.Verdict
	weight  int
	guard   bool
	gone    bool // the node has left the cluster's list
	ready   bool // MAINT and DRAIN end with it
}

// step brings one server into its state.
type step struct {
	server
	want
	commands []string
	cluster  string
}

// roster is every server that a cluster ever listed, and still has a pool for.
type roster map[server]bool

// backends are those of a cluster's pools, guards among them.
func backends(o *Options, s *topology.Snapshot) map[string]bool {
	out := make(map[string]bool)
	for _, p := range s.Pools {
		out[o.Names(s.Cluster, p.Pool)] = true
		out[o.Guards(s.Cluster, p)] = true
	}
	return out
}

// note takes a complete snapshot over and returns the servers whose node has left
// the list. A pool that is no longer configured is not ours any more: its servers
// are forgotten, and left as they are.
func (r roster) note(o *Options, s *topology.Snapshot) (departed []server) {
	if !s.Complete {
		return nil
	}
	listed, ours := make(map[server]bool), backends(o, s)
	for _, p := range s.Pools {
		for _, n := range p.Nodes {
			listed[server{Backend: o.Names(s.Cluster, p.Pool), Server: n.Node}] = true
		}
	}
	for srv := range r {
		switch {
		case !ours[srv.Backend]:
			delete(r, srv)
		case !listed[srv]:
			departed = append(departed, srv)
		}
	}
	maps.Copy(r, listed)
	return departed
}

// desired returns the state of every server of a cluster. What is undecided is
// left as it stands, but for servers that HAProxy itself knows nothing about:
// a server that was never spoken of counts as up there, and would take sessions
// on no evidence. While others of its pool serve, it drains until it is decided;
// when no other does, HAProxy's own checks are all there is, and no word of ours
// empties a pool.
func desired(o *Options, s *topology.Snapshot, departed []server, unheard func(server) bool) map[server]want {
	out := make(map[server]want)
	for _, p := range s.Pools {
		backend := o.Names(s.Cluster, p.Pool)
		served := len(p.Up()) > 0
		for _, n := range p.Nodes {
			srv := server{Backend: backend, Server: n.Node}
			if w := wantOf(n); w.verdict != topology.Undecided {
				w.ready = o.Ready && w.verdict == topology.Up
				out[srv] = w
			} else if served && unheard(srv) {
				out[srv] = want{verdict: topology.Drain}
			}
		}
		if guard := o.Guards(s.Cluster, p); guard != "" {
			if v := s.Guard(p); v != topology.Undecided {
				out[server{Backend: guard, Server: "g"}] = want{verdict: v, guard: true}
			}
		}
	}
	for _, srv := range departed {
		out[srv] = want{verdict: topology.Down, gone: true}
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

// plan returns the steps from what a socket has confirmed to what is wanted.
func plan(cluster string, wanted, confirmed map[server]want) []step {
	var steps []step
	for srv, w := range wanted {
		if confirmed[srv] != w {
			steps = append(steps, step{server: srv, want: w, cluster: cluster, commands: commands(srv, w)})
		}
	}
	return steps
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
	in := []string{set + " weight " + strconv.Itoa(w.weight) + "%", set + " agent up"}
	if w.ready {
		in = append(in, set+" state ready")
	}
	return in
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
		return cmp.Or(a.phase()-b.phase(), a.Compare(b.server))
	})
}

// most is how many bytes of commands are sent in a line. The whole line must fit
// HAProxy's buffer, 16 kB by default.
const most = 8000

// chunks cuts steps into requests that fit HAProxy's buffer.
func chunks(steps []step) [][]step {
	return cut(steps, func(s step) (size int) {
		for _, c := range s.commands {
			size += len(c) + 1
		}
		return size
	})
}

// cut cuts a list into parts of at most that many bytes.
func cut[T any](all []T, bytes func(T) int) (parts [][]T) {
	size := most
	for _, one := range all {
		n := bytes(one)
		if size+n > most {
			parts, size = append(parts, nil), 0
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], one)
		size += n
	}
	return parts
}
