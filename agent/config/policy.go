package config

import (
	"reflect"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Policy holds the times of topology.Policy; their meaning stands there.
type Policy struct {
	AuthorityLost      topology.AuthorityLost `yaml:"authority_lost"`
	SilentAfter        time.Duration          `yaml:"silent_after"`
	KillAfter          time.Duration          `yaml:"kill_after"`
	RefusedConfirm     time.Duration          `yaml:"refused_confirm"`
	EvidenceMaxAge     time.Duration          `yaml:"evidence_max_age"`
	AuthorityMaxAge    time.Duration          `yaml:"authority_max_age"`
	HoldMax            time.Duration          `yaml:"hold_max"`
	LeaderGap          time.Duration          `yaml:"leader_gap"`
	MinDown            time.Duration          `yaml:"min_down"`
	ReturnAfter        time.Duration          `yaml:"return_after"`
	PausedGrace        time.Duration          `yaml:"paused_grace"`
	StreamingGrace     time.Duration          `yaml:"streaming_grace"`
	LagUnknownAfter    time.Duration          `yaml:"lag_unknown_after"`
	LagGrace           time.Duration          `yaml:"lag_grace"`
	LagReturnAfter     time.Duration          `yaml:"lag_return_after"`
	MinDwell           time.Duration          `yaml:"min_dwell"`
	Flap               Flap                   `yaml:"flap"`
	SlowStart          time.Duration          `yaml:"slow_start"`
	WritesStalledAfter time.Duration          `yaml:"writes_stalled_after"`
	WriteStall         topology.WriteStall    `yaml:"write_stall"`
	WritesBlockedAfter time.Duration          `yaml:"writes_blocked_after"`
}

// Flap is topology.Flap; the meaning stands there.
type Flap struct {
	Count       int           `yaml:"count"`
	Within      time.Duration `yaml:"within"`
	HoldDown    time.Duration `yaml:"hold_down"`
	HoldDownMax time.Duration `yaml:"hold_down_max"`
	Calm        time.Duration `yaml:"calm"`
}

func defaultPolicy() (p Policy) {
	mirror(&p, topology.DefaultPolicy())
	return p
}

// policy is what engine.Decide needs to know of a cluster. zone is the agent's.
func (c Cluster) policy(zone string) topology.Policy {
	p := topology.Policy{Authority: c.Authority}
	mirror(&p, c.Policy)
	for _, pool := range c.Pools {
		p.Pools = append(p.Pools, pool.topology(zone))
	}
	return p
}

// mirror copies into the struct that dst points at every field of src that has
// the same name there.
func mirror(dst, src any) {
	to, from := reflect.ValueOf(dst).Elem(), reflect.ValueOf(src)
	for i := range from.NumField() {
		f := to.FieldByName(from.Type().Field(i).Name)
		if f.IsValid() && from.Field(i).CanConvert(f.Type()) {
			f.Set(from.Field(i).Convert(f.Type()))
		}
	}
}
