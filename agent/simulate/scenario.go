package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Scenario is a file: a cluster, what happens to it, and what is expected.
type Scenario struct {
	File  string // as it was named to Load
	About string
	Name  string // the cluster's

	cluster config.Cluster
	local   string // the node for HTTP paths without a name
	zone    string // the agent's
	probing probing
	start   topology.Clock
	saved   *topology.Saved // of before the start; nil: nothing
	world   effects         // at time 0
	steps   []step
	always  []always
	changes []flips
	// addresses are where the nodes of the file are, by name.
	addresses map[string]topology.Address
	usesEDS   bool // an expectation looks at what Envoy gets
}

// probing is the pace of the watchers.
type probing struct {
	Off bool `yaml:"-"` // only observe steps bring evidence

	Interval  time.Duration `yaml:"interval"`  // between the probes of a node
	Authority time.Duration `yaml:"authority"` // between the reads of Patroni's keys
	Burst     time.Duration `yaml:"burst"`     // between the probes of a node that the decision asks for
	Offset    time.Duration `yaml:"offset"`    // when the first probe is made
}

// DecodeYAML reads the paces, or the word off.
func (p *probing) DecodeYAML(v config.Value) {
	if word, scalar := v.Text(); scalar {
		if p.Off = word == "off"; !p.Off {
			v.Fault("`%s` is neither off nor a map of interval, authority, burst, offset", word)
		}
		return
	}
	type plain probing
	v.Into((*plain)(p))
	for _, key := range []struct {
		name string
		is   time.Duration
	}{{"interval", p.Interval}, {"authority", p.Authority}, {"burst", p.Burst}} {
		if v.Key(key.name).Written() && key.is < time.Millisecond {
			v.Key(key.name).Fault("%s %s is below 1ms", key.name, key.is)
		}
	}
}

// effects are what a step changes of the truth.
type effects struct {
	kv          map[string]any // nil: nothing
	sql         []nodeChange
	consul      *outcome
	monitor     *monitorChange // nil: nothing
	nodes       []topology.Node
	listed      bool // nodes is said
	maintenance []maintenance
}

// nodeChange is what a step changes of a node.
type nodeChange struct {
	node    string
	changes []change
}

// maintenance is a start, or an end when end is set.
type maintenance struct {
	node string // "*": the whole cluster
	end  bool

	Reason string        `yaml:"reason"`
	Who    string        `yaml:"who"`
	For    time.Duration `yaml:"for"` // zero: until ended
}

// wholeCluster stands for a node in a maintenance of all.
const wholeCluster = "*"

// step is one moment at which something happens.
type step struct {
	at time.Duration
	effects
	note    string
	agent   agentEvent
	wall    time.Duration // by which the wall clock jumps
	quiet   bool          // watchers find the change by themselves only
	observe []observation
	expect  []check
}

// agentEvent is what happens to the agent itself.
type agentEvent struct {
	word string
	stop time.Duration
}

// The words for what may happen to the agent.
const (
	agentRestart      = "restart"
	agentRestartEmpty = "restart_empty"
	agentIsolated     = "isolated"
	agentNotIsolated  = "not_isolated"
)

var agentWords = []string{agentRestart, agentRestartEmpty, agentIsolated, agentNotIsolated}

// DecodeYAML reads a word, or a map with stop.
func (a *agentEvent) DecodeYAML(v config.Value) {
	if word, scalar := v.Text(); scalar {
		if a.word = word; !slices.Contains(agentWords, word) {
			v.Fault("%s; or a map with stop", config.UnknownWord(word, agentWords))
		}
		return
	}
	var m struct {
		Stop time.Duration `yaml:"stop"`
	}
	v.Into(&m)
	if a.stop = m.Stop; m.Stop <= 0 {
		v.Key("stop").Fault("stop says how long the process stands still, such as 2.5s")
	}
}

// always is what must hold in every decision of a time.
type always struct {
	from, to time.Duration
	expect   []check
}

// flips bounds how often a node's verdict changes over the whole run.
type flips struct {
	pool, node      string
	atMost, atLeast *int
	line            int
}

// Load reads a scenario. Faults of content are *config.Faults; a file that
// cannot be read is the error of the operating system.
func Load(file string) (*Scenario, error) {
	b, err := config.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	return Parse(file, b)
}

// Parse reads a scenario from a text; the name stands in faults. Errors are
// *config.Faults.
func Parse(name string, text []byte) (*Scenario, error) {
	f := file{scenario: Scenario{File: name}}
	if err := config.Decode(name, text, &f); err != nil {
		return nil, err
	}
	return &f.scenario, nil
}
