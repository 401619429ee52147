package config

import (
	"reflect"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Pool is a named routing target of a cluster. Fields that topology.Pool has
// too mean the same.
type Pool struct {
	Name   string        `yaml:"-"`
	Mode   topology.Mode `yaml:"mode"`
	Listen ListenAddress `yaml:"listen"` // where balancers offer it; empty: nowhere
	// Refuse is where the agent tells clients why the pool takes no session; empty:
	// nowhere, their connections are closed.
	Refuse           ListenAddress      `yaml:"refuse"`
	Select           topology.Selector  `yaml:"select"`
	Role             topology.Role      `yaml:"role"`
	MaxLag           topology.Size      `yaml:"max_lag"`
	MaxLagHard       topology.Size      `yaml:"max_lag_hard"`
	MaxLagTime       time.Duration      `yaml:"max_lag_time"`
	MinReplicas      int                `yaml:"min_replicas"`
	Fallback         topology.Fallback  `yaml:"fallback"`
	FallbackWeight   int                `yaml:"fallback_weight" type:"percent"`
	RequireStreaming bool               `yaml:"require_streaming"`
	WeightByLag      bool               `yaml:"weight_by_lag"`
	Weights          Weights            `yaml:"weights"`
	PreferZone       bool               `yaml:"prefer_zone"` // topology.Pool.Zone is Config.Zone
	Port             uint16             `yaml:"port" type:"port"`
	PortCheck        topology.PortCheck `yaml:"port_check"`
	Sessions         Sessions           `yaml:"sessions"`
	EnvoySessions    EnvoySessions      `yaml:"envoy_sessions"` // empty: as the mode has it
}

// Pools is a map by name in the file and keeps the file's order.
type Pools []Pool

// Weights is a map from nodes to percents; nil when nothing is written.
type Weights map[string]int

// Sessions says for reasons whether sessions go on (topology.Drain) or end
// (topology.Down); nil when nothing is written.
type Sessions map[topology.Code]topology.Verdict

func defaultPools() Pools {
	var pools Pools
	for _, p := range topology.DefaultPools() {
		pools = append(pools, defaultPool(p.Name, p.Mode))
	}
	return pools
}

func defaultPool(name string, mode topology.Mode) Pool {
	p := Pool{PreferZone: mode == topology.ModeRead}
	mirror(&p, topology.DefaultPool(name, mode))
	return p
}

func (p Pool) topology(zone string) (t topology.Pool) {
	mirror(&t, p)
	if p.PreferZone {
		t.Zone = zone
	}
	return t
}

func (ps *Pools) decode(d *decoder, p path, n *yaml.Node) {
	entries := d.named(p, n)
	if len(entries) == 0 {
		return // nothing below the key: the default pools stand
	}
	*ps = nil
	for _, e := range entries {
		pool := defaultPool(e.key, d.poolMode(p.child(e.key), e))
		d.structure(p.child(e.key), e.value, reflect.ValueOf(&pool).Elem())
		*ps = append(*ps, pool)
	}
}

// poolMode finds a pool's mode before its other keys are decoded, since their
// defaults depend on it. The names of the default pools imply theirs.
func (d *decoder) poolMode(p path, e entry) topology.Mode {
	mode, implied := topology.ModeRead, false
	for _, known := range topology.DefaultPools() {
		if known.Name == e.key {
			mode, implied = known.Mode, true
		}
	}
	for _, f := range d.peek(e.value) {
		if f.key == "mode" {
			if word := resolve(f.value).Value; slices.Contains(words(mode), word) {
				mode = topology.Mode(word)
			}
			return mode // a bad word is reported when it is decoded
		}
	}
	if !implied && (isNull(e.value) || resolve(e.value).Kind == yaml.MappingNode) {
		d.fault(p.child("mode"), e.at, "pool %s has no mode, write or read; only the names primary and replica imply one", e.key)
	}
	return mode
}

func (w *Weights) decode(d *decoder, p path, n *yaml.Node) {
	for _, e := range d.named(p, n) {
		var percent int
		d.mark(p.child(e.key), e)
		d.value(p.child(e.key), e.value, reflect.ValueOf(&percent).Elem(), kindPercent)
		if *w == nil {
			*w = make(Weights)
		}
		(*w)[e.key] = percent
	}
}

// sessionsWord is how a file says what becomes of sessions.
type sessionsWord string

const (
	sessionsKeep sessionsWord = "keep"
	sessionsEnd  sessionsWord = "end"
)

func (s *Sessions) decode(d *decoder, p path, n *yaml.Node) {
	for _, e := range d.entries(p, n) {
		here := p.child(e.key)
		d.mark(here, e)
		if text := noChoice(e.key); text != "" {
			d.fault(here, e.at, "%s", text)
			continue
		}
		var word sessionsWord
		d.value(here, e.value, reflect.ValueOf(&word).Elem(), "")
		if *s == nil {
			*s = make(Sessions)
		}
		(*s)[topology.Code(e.key)] = topology.Drain
		if word == sessionsEnd {
			(*s)[topology.Code(e.key)] = topology.Down
		}
	}
}

// noChoice explains why a reason's effect on sessions cannot be chosen; empty
// when it can.
func noChoice(code string) string {
	info := topology.Code(code).Info()
	switch {
	case info.Choice:
		return ""
	case info.Code == "":
		return "no such reason: " + UnknownWord(code, choices())
	}
	return "reason " + quote(code) + " leaves no choice about sessions, only these do: " + list(choices())
}

// choices are the reasons that Sessions may hold.
func choices() []string {
	var codes []string
	for _, c := range topology.Codes {
		if c.Choice {
			codes = append(codes, string(c.Code))
		}
	}
	return codes
}
