package healthapi

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// This file has Patroni's own rules (api.py of 3.0.2 and 4.1.5), for Patroni3 and
// Patroni4. What Patroni knows of itself is told here from outside.

// dcs: Patroni has a view of its store, which it drops at the first failed read.
// Without an authority there is nothing to lose.
func (sub *subject) dcs() bool {
	if sub.snapshot == nil {
		return false
	}
	st := sub.snapshot.Authority.State
	return st == topology.AuthorityStateCurrent || st == topology.AuthorityStateNone
}

// defaultTTL is Patroni's, for a configuration key that does not say.
const defaultTTL = 30 * time.Second

// lock: the node's Patroni believes that it holds the leader key: for ttl after it
// last could, and in failsafe mode for as long as the members agree.
func (sub *subject) lock() bool {
	a := sub.authority()
	if !sub.leads() {
		return false
	}
	return sub.dcs() || sub.within(sub.authoritySeen(), cmp.Or(a.TTL, defaultTTL)) || a.Failsafe == topology.Yes
}

// pausedWithoutDCS: roles alone decide then.
func (sub *subject) pausedWithoutDCS() bool {
	return !sub.dcs() && sub.authority().Pause == topology.Yes
}

// hung: PostgreSQL is silent. Patroni's own query waits for it, and with it every
// check of that Patroni, so that its checkers get no answer and take that for a no;
// its loop stands still as well, until the lock expires. A server that answers by
// word, whatever it says, is not hung.
func (s *Server) hung(sub *subject) (answer, bool) {
	f := sub.facts
	if f.FailingAt == 0 || f.Failure == nil || f.Failure.Class != topology.FailTimeout || sub.within(f.AnsweredAt, s.opts.AnsweredWithin) {
		return answer{}, false
	}
	return no(topology.CodeSilent, "PostgreSQL does not answer; Patroni's own checks then hang with it"), true
}

// lockedPrimary: the lock alone makes the primary, even one that is not running.
func (sub *subject) lockedPrimary(a answer) answer {
	standby := sub.authority().StandbyCluster
	switch {
	case sub.pausedWithoutDCS() && sub.facts.InRecovery == topology.No:
		return yes(topology.CodeAuthorityLost, "paused without its store; the node is not in recovery")
	case !sub.pausedWithoutDCS() && sub.lock() && !standby:
		return yes(topology.CodeNotNamed, "the node holds the leader key; whether it takes writes is not asked")
	}
	return a
}

func (sub *subject) lockedLeader() answer {
	switch {
	case sub.pausedWithoutDCS() && (sub.facts.InRecovery == topology.No || sub.standbyLeader()):
		return yes(topology.CodeAuthorityLost, "paused without its store; the node's role is that of a leader")
	case !sub.pausedWithoutDCS() && sub.lock():
		return yes(topology.CodeNotNamed, "the node holds the leader key")
	}
	return no(topology.CodeNotNamed, "the node does not hold the leader key")
}

func (sub *subject) lockedStandbyLeader() answer {
	if sub.standbyLeader() && sub.facts.InRecovery == topology.Yes && (sub.pausedWithoutDCS() || sub.lock()) {
		return yes(topology.CodeStandbyCluster, "the node leads the standby cluster")
	}
	return no(topology.CodeNotNamed, "the node does not lead a standby cluster")
}

// patroniReadiness: up to 4.0 a running server was enough.
func (s *Server) patroniReadiness(sub *subject) answer {
	if out, is := s.hung(sub); is {
		return out
	}
	if sub.lock() {
		return yes(topology.CodeNotNamed, "the node holds the leader key")
	}
	if a := s.health(sub); !a.ok {
		return a
	}
	switch {
	case sub.old() && !sub.dcs():
		return no(topology.CodeAuthorityLost, "the authority cannot be reached")
	case sub.old():
		return yes("", "the node answers over SQL")
	case !sub.dcs() && sub.facts.Probe != nil && sub.facts.Probe.Receiver.LatestEnd == 0 && sub.authority().Failsafe != topology.Yes:
		return no(topology.CodeAuthorityLost, "the authority cannot be reached and no position of the leader is known")
	}
	return s.caughtUp(sub)
}

// patroniEndpoint finds the endpoint as Patroni does. The first element of the
// path names a document, for GET alone; for checks a part of the path is enough,
// in this order; a few must be the whole path.
func patroniEndpoint(method, path string, compat Compat) endpoint {
	first, _, _ := strings.Cut(strings.TrimLeft(path, "/"), "/")
	if method == http.MethodGet && documents[first] {
		return endpoints[first]
	}
	if path == "/" {
		return endpoints["primary"]
	}
	for _, rule := range substrings {
		if strings.Contains(path, rule.part) && !rule.excepts(path, compat) {
			return endpoints[rule.name]
		}
	}
	name := strings.TrimPrefix(path, "/")
	if known := compat != Patroni3 || name != "quorum"; known && whole[name] {
		return endpoints[name]
	}
	return endpoint{name: "unknown", check: unknownCheck}
}

// substring is a part of a path that is enough to name a check.
type substring struct{ part, name string }

// substrings in the order in which Patroni looks for them.
var substrings = []substring{
	{"standby_leader", "standby-leader"},
	{"standby-leader", "standby-leader"},
	{"leader", "leader"},
	{"master", "primary"},
	{"primary", "primary"},
	{"read-write", "primary"},
	{"replica", "replica"},
	{"read-only", "read-only"},
	{"health", "health"},
}

// excepts: the path is one of those that are compared as a whole.
func (r substring) excepts(path string, compat Compat) bool {
	return r.part == "read-only" && (strings.Contains(path, "sync") || compat != Patroni3 && strings.Contains(path, "quorum"))
}

// whole lists the paths that must match to the letter.
var whole = map[string]bool{
	"sync": true, "synchronous": true, "async": true, "asynchronous": true, "quorum": true,
	"read-only-sync": true, "read-only-synchronous": true, "read-only-quorum": true,
}

// documents are found by the first element of the path.
var documents = map[string]bool{
	"liveness": true, "readiness": true, "patroni": true, "cluster": true, "history": true, "config": true,
	"metrics": true, "failsafe": true,
}

func unknownCheck(*Server, *subject) answer {
	return no("", "no such check; Patroni says 503 to every path it does not know")
}
