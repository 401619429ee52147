package simulate

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// encoder writes what happened relative to the scenario's start.
type encoder struct {
	start   topology.Clock
	cluster string
}

// steps makes a step of each round; rounds of one moment of which nothing but
// the last has decided anything share one. Steps stand in the order of time,
// also where observations arrived a little out of it: their own times are
// written then.
func (e encoder) steps(rounds []Round) *yaml.Node {
	steps := list()
	var step fields
	var observed *yaml.Node
	var decided *topology.Snapshot // newest so far
	shared, at := false, time.Duration(-1)
	for _, r := range rounds {
		here := max(r.At.Mono.Sub(e.start.Mono), at, 0)
		if r.Still && here > at && at >= 0 {
			steps.Content = append(steps.Content, standstill(at, here))
		}
		if !shared || here != at {
			step, observed = newFields(), nil
			step.put("at", scalar(here.String()))
			steps.Content = append(steps.Content, step.n)
		}
		shared, at = r.Decision == nil, here
		if r.Decision != nil {
			step.put("note", scalar("the agent: "+changes(decided, r.Decision)))
			decided = r.Decision
		}
		if observed == nil && len(r.Observations) > 0 {
			observed = list()
			step.put("observe", observed)
		}
		for _, o := range r.Observations {
			observed.Content = append(observed.Content, e.observation(o, at))
		}
	}
	if decided != nil {
		step.put("expect", expectation(decided))
	}
	return steps
}

// standstill is a step in which the process stops from one moment to another.
func standstill(from, to time.Duration) *yaml.Node {
	step, stop := newFields(), newFields()
	stop.put("stop", scalar((to - from).String()))
	step.put("at", scalar(from.String()))
	step.flow("agent", stop)
	return step.n
}

// changes says in what a decision differs from the one before it.
func changes(before, after *topology.Snapshot) string {
	var was topology.Snapshot
	var out []string
	if before != nil {
		was = *before
	}
	if before == nil || was.Writer != after.Writer {
		writer := after.Writer
		if writer == "" {
			writer = nobody
		}
		out = append(out, "writer "+writer)
	}
	for _, p := range after.Pools {
		old, _ := was.Pool(p.Pool)
		var nodes []string
		for _, n := range p.Nodes {
			o, listed := old.Verdict(n.Node)
			if !listed || verdictCode(o) != verdictCode(n) {
				nodes = append(nodes, n.Node+" "+verdictCode(n))
			}
		}
		for _, o := range old.Nodes {
			if _, listed := p.Verdict(o.Node); !listed {
				nodes = append(nodes, o.Node+" "+absent)
			}
		}
		if len(nodes) > 0 {
			out = append(out, p.Pool+": "+strings.Join(nodes, ", "))
		}
	}
	if len(out) == 0 {
		return "the same verdicts as before"
	}
	return strings.Join(out, "; ")
}

func verdictCode(n topology.NodeVerdict) string {
	return fmt.Sprintf("%s/%s", n.Verdict, n.Reason().Code)
}

// expectation expects the writer and each verdict of a decision.
func expectation(s *topology.Snapshot) *yaml.Node {
	out, pools := newFields(), newFields()
	writer := s.Writer
	if writer == "" {
		writer = nobody
	}
	out.put("writer", scalar(writer))
	for _, p := range s.Pools {
		nodes := newFields()
		for _, n := range p.Nodes {
			nodes.put(n.Node, scalar(n.Verdict.String()))
		}
		pools.flow(p.Pool, nodes)
	}
	if len(pools.n.Content) > 0 {
		out.put("verdicts", pools.n)
	}
	return out.n
}
