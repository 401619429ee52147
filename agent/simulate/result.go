package simulate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Result is what a run of a scenario showed.
type Result struct {
	File    string  `json:"file"`
	About   string  `json:"about,omitempty"`
	Cluster string  `json:"cluster"`
	Events  []Event `json:"events"` // in the order of time
	// Expectations counts every single thing that was expected.
	Expectations int       `json:"expectations"`
	Failures     []Failure `json:"failures"`
	// Decisions counts the evaluations of the rules.
	Decisions int `json:"decisions"`
}

// Event is one line of the table: a step's note, or something that the decision
// changed.
type Event struct {
	At Moment `json:"at_seconds"`
	// Note is a step's note, or a word on the cluster as a whole.
	Note string `json:"note,omitempty"`
	// The rest is empty for a note.
	Pool    string            `json:"pool,omitempty"`
	Node    string            `json:"node,omitempty"`
	Verdict *topology.Verdict `json:"verdict,omitempty"` // nil: the node is not listed any more
	Weight  int               `json:"weight,omitempty"`  // of a node that is up
	Reason  topology.Code     `json:"reason,omitempty"`
	Text    string            `json:"text,omitempty"`
}

// Failure is an expectation that did not hold.
type Failure struct {
	File string `json:"file"`
	Line int    `json:"line"`
	At   Moment `json:"at_seconds"`
	What string `json:"what"` // such as verdicts.replica.b
	Want string `json:"want"`
	Got  string `json:"got"`
}

// Moment is a time since the start of a scenario.
type Moment time.Duration

// MarshalJSON writes seconds.
func (m Moment) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(m).Seconds()) }

// String writes seconds with milliseconds.
func (m Moment) String() string { return fmt.Sprintf("%.3fs", time.Duration(m).Seconds()) }

// String writes file:line, the time, and what differs.
func (f Failure) String() string {
	return fmt.Sprintf("%s:%d: at %s: %s\n\twant %s\n\tgot  %s", f.File, f.Line, f.At, f.What, indented(f.Want), indented(f.Got))
}

func indented(s string) string { return strings.ReplaceAll(s, "\n", "\n\t     ") }

// shown is what the table has of a node in a pool.
type shown struct {
	verdict topology.Verdict
	weight  int
	code    topology.Code
}

func (r *run) note(format string, args ...any) {
	r.result.Events = append(r.result.Events, Event{At: Moment(r.at()), Note: fmt.Sprintf(format, args...)})
}

// count counts the changes of verdicts, but for the first word on a node.
func (r *run) count(before, after *topology.Snapshot) {
	if before == nil {
		return
	}
	for _, p := range after.Pools {
		old, _ := before.Pool(p.Pool)
		for _, n := range p.Nodes {
			if was, known := old.Verdict(n.Node); known && was.Verdict != n.Verdict && was.Verdict != topology.Undecided {
				r.flips[p.Pool+" "+n.Node]++
			}
		}
	}
}

// tell notes what the newest decision of this moment says differently from the
// newest one of the moments before.
func (r *run) tell() {
	if r.snap == nil || r.snap == r.told {
		return
	}
	r.tellCluster(r.told, r.snap)
	r.told = r.snap
	listed := make(map[string]bool)
	for _, p := range r.snap.Pools {
		for _, n := range p.Nodes {
			key := p.Pool + " " + n.Node
			listed[key] = true
			r.tellNode(key, p.Pool, n)
		}
	}
	for _, key := range sortedKeys(r.shown) {
		if !listed[key] {
			delete(r.shown, key)
			pool, node, _ := strings.Cut(key, " ")
			r.result.Events = append(r.result.Events, Event{At: Moment(r.at()), Pool: pool, Node: node})
		}
	}
}

func (r *run) tellNode(key, pool string, n topology.NodeVerdict) {
	now := shown{n.Verdict, n.Weight, n.Reason().Code}
	if n.Verdict != topology.Up {
		now.weight = 0
	}
	if was, known := r.shown[key]; known && was == now {
		return
	}
	r.shown[key] = now
	r.result.Events = append(r.result.Events, Event{
		At: Moment(r.at()), Pool: pool, Node: n.Node, Verdict: &n.Verdict, Weight: now.weight, Reason: now.code, Text: n.Reason().Text,
	})
}

// tellCluster notes changes of the authority and of alarms.
func (r *run) tellCluster(before, after *topology.Snapshot) {
	var was topology.Snapshot
	if before != nil {
		was = *before
	}
	if a := after.Authority; a != was.Authority && a.Kind != topology.AuthorityNone {
		leader := a.Leader
		if leader == "" {
			leader = "nobody"
		}
		r.note("authority is %s and names %s", a.State, leader)
	}
	old := alarms(&was)
	for _, a := range after.Alarms {
		if !slices.Contains(old, string(a.Code)) {
			r.note("alarm %s: %s", a.Code, a.Text)
		}
	}
	now := alarms(after)
	for _, code := range old {
		if !slices.Contains(now, code) {
			r.note("alarm %s is over", code)
		}
	}
}

func alarms(s *topology.Snapshot) []string {
	out := []string{}
	for _, a := range s.Alarms {
		out = append(out, string(a.Code))
	}
	slices.Sort(out)
	return out
}
