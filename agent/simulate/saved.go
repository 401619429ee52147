package simulate

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// savedFile is what an earlier agent left, as it is written.
type savedFile struct {
	Writer   text                             `yaml:"writer"`
	SystemID uint64                           `yaml:"system_id"`
	Timeline timeline                         `yaml:"timeline"`
	Nodes    []nodeFile                       `yaml:"nodes"`
	Lost     map[text]span                    `yaml:"lost"` // since the start
	Verdicts map[text]map[text]decidedVerdict `yaml:"verdicts"`
}

// decidedVerdict is a verdict in one word.
type decidedVerdict topology.Verdict

var verdictWords = []string{topology.Up.String(), topology.Drain.String(), topology.Down.String(), topology.Undecided.String()}

// UnmarshalText reads up, drain, down or undecided.
func (d *decidedVerdict) UnmarshalText(b []byte) error {
	for _, v := range []topology.Verdict{topology.Up, topology.Drain, topology.Down, topology.Undecided} {
		if v.String() == string(b) {
			*d = decidedVerdict(v)
			return nil
		}
	}
	return fmt.Errorf("%s", config.UnknownWord(string(b), verdictWords))
}

// value is the saved state of a cluster; moments count from the start's wall clock.
func (w *savedFile) value(cluster string, start topology.Clock) *topology.Saved {
	s := &topology.Saved{
		Version: 1, Cluster: cluster, Writer: string(w.Writer), SystemID: w.SystemID, Timeline: topology.Timeline(w.Timeline),
		Nodes: (&nodesFile{List: w.Nodes}).value().Nodes, SavedAt: start.Wall,
		Verdicts: make(map[string]map[string]topology.Verdict),
	}
	for node, at := range w.Lost {
		if s.Lost == nil {
			s.Lost = make(map[string]time.Time)
		}
		s.Lost[string(node)] = start.Wall.Add(time.Duration(at))
	}
	for pool, nodes := range w.Verdicts {
		verdicts := make(map[string]topology.Verdict, len(nodes))
		for node, v := range nodes {
			verdicts[string(node)] = topology.Verdict(v)
		}
		s.Verdicts[string(pool)] = verdicts
	}
	return s
}

// saved writes what savedFile reads.
func (e encoder) saved(s topology.Saved) *yaml.Node {
	f := newFields()
	f.text("writer", s.Writer)
	f.number("system_id", s.SystemID)
	f.number("timeline", uint64(s.Timeline))
	f.list("nodes", nodeNodes(s.Nodes))
	lost := newFields()
	for _, node := range sortedKeys(s.Lost) {
		lost.put(node, scalar(s.Lost[node].Sub(e.start.Wall).String()))
	}
	f.flow("lost", lost)
	pools := newFields()
	for _, pool := range sortedKeys(s.Verdicts) {
		nodes := newFields()
		for _, node := range sortedKeys(s.Verdicts[pool]) {
			nodes.put(node, scalar(s.Verdicts[pool][node].String()))
		}
		pools.flow(pool, nodes)
	}
	if len(pools.n.Content) > 0 {
		f.put("verdicts", pools.n)
	}
	return f.n
}
