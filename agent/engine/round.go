package engine

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxSleep bounds the time between two decisions, so that Facts stay young and
// a View's validity can be short.
const maxSleep = time.Second

// maxText bounds a reason's text, as topology.Reason promises.
const maxText = 80

// round is one evaluation of the rules. A State keeps the one it had, so that
// its buffers are used again and a round that changes nothing allocates nothing.
type round struct {
	p     topology.Policy
	now   topology.Clock
	s     *State
	m     topology.Maintenance
	nodes []*node // by name
	auth  topology.AuthorityStatus
	wake  topology.Mono

	writer [][]effect  // by node, of the writer role
	pools  []poolRound // in the policy's order
	alarms []effect    // cluster-wide troubles, in a fixed order
	spare  []effect    // for questions whose answer is not kept
	behind []candidate // for readmission
}

// poolRound is what one pool comes to.
type poolRound struct {
	effects  [][]effect // by node
	weights  []int      // by node, in percent
	fallback bool
}

// effect is what one rule says of a node.
type effect struct {
	verdict topology.Verdict
	code    topology.Code
	at      topology.Mono
	text    string
}

// Decide applies the rules to what was observed. It returns the snapshot (the
// same pointer as before when nothing was decided differently), what the
// watchers should look at more closely, and when to decide again at the latest.
func Decide(p topology.Policy, now topology.Clock, s *State, m topology.Maintenance) (*topology.Snapshot, topology.Demand, topology.Mono) {
	r := &s.round
	r.begin(p, now, s, m)
	r.timeMaintenance()
	r.noticeStandstill()
	r.auth = r.authorityStatus()
	r.confirmIdentity()
	r.hear()
	r.declareSilence()
	r.decideWriter()
	r.measure()
	r.decidePools()
	r.raiseAlarms()
	snap := r.keepOrReplace()
	d := r.demand()
	s.planned = r.wake
	for _, n := range r.nodes {
		n.refusedFor, n.refusedSeen = 0, n.refusedTo
	}
	return snap, d, r.wake
}

func (r *round) begin(p topology.Policy, now topology.Clock, s *State, m topology.Maintenance) {
	r.p, r.now, r.s, r.m, r.nodes, r.wake = p, now, s, m, s.order, now.Mono.Add(maxSleep)
	r.alarms = r.alarms[:0]
	r.writer = sized(r.writer, len(r.nodes))
	if len(r.pools) != len(p.Pools) {
		r.pools = make([]poolRound, len(p.Pools))
	}
	for i := range r.pools {
		r.pools[i].effects = sized(r.pools[i].effects, len(r.nodes))
		r.pools[i].weights = sized(r.pools[i].weights, len(r.nodes))
		r.pools[i].fallback = false
	}
}

// sized returns a buffer of n elements, the same one while the number stays.
func sized[T any](buffer []T, n int) []T {
	if len(buffer) == n {
		return buffer
	}
	return make([]T, n)
}

// noticeStandstill: when the agent itself did not run (a stopped process, a
// suspended machine), nobody could be asked meanwhile, so silence is counted
// from the end of the standstill.
func (r *round) noticeStandstill() {
	if r.s.planned != 0 && r.now.Mono.Sub(r.s.planned) > maxSleep {
		r.s.resumedAt = r.now.Mono
	}
}

// since reports whether d has passed since m, and asks to be woken then.
func (r *round) since(m topology.Mono, d time.Duration) bool {
	due := m.Add(d)
	if r.now.Mono >= due {
		return true
	}
	r.wake = min(r.wake, due)
	return false
}

// printable makes a text safe for every sink: names and an operator's words
// come from outside, and HAProxy's agent line knows no comma and no line break.
// Letters of other scripts stay; those who can say ASCII alone replace them.
func printable(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case c == ',':
			return ';'
		case !unicode.IsPrint(c):
			return ' '
		}
		return c
	}, s)
	end := min(len(s), maxText)
	for end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// effect is a rule's word. A text without arguments is taken as it is: it is
// ours, and the common case costs nothing.
func (r *round) effect(v topology.Verdict, code topology.Code, at topology.Mono, format string, args ...any) effect {
	if at == 0 {
		at = r.now.Mono
	}
	if len(args) > 0 {
		format = printable(fmt.Sprintf(format, args...))
	}
	return effect{v, code, at, format}
}

func (r *round) reason(e effect) topology.Reason {
	return topology.Reason{Code: e.code, Text: e.text, Since: r.now.WallAt(e.at)}
}

// harshest orders up < drain < down; undecided counts only alone.
func harshest(effects []effect) topology.Verdict {
	v := topology.Undecided
	for _, e := range effects {
		v = max(v, e.verdict)
	}
	return v
}
