package agent

import (
	"fmt"
	"os"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/mesh"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// madeOfMesh is what the part that publishes into Consul is made of.
func madeOfMesh(cfg *config.Config) []any {
	made := []any{cfg.Mesh, cfg.Consul}
	for _, cl := range cfg.Published() {
		made = append(made, cl.Name, cl.Mesh, cfg.MeshNode(cl))
	}
	return made
}

func (a *Agent) buildMesh(cfg *config.Config, client *consul.Client) (*part, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("mesh: find the name of this host, which tells publishers apart: %w", err)
	}
	o := meshOptions(cfg)
	o.Client, o.Views, o.Now, o.Logger = client, &a.views, a.now, a.log.With("component", partMesh)
	o.Name = fmt.Sprintf("%s (process %d)", name, os.Getpid())
	o.Owner = name + " " + a.store.dir // two agents on one host have a folder each
	p, err := mesh.New(o)
	if err != nil {
		return nil, err
	}
	if o.External && cfg.Maintenance.Store == config.StoreFile {
		o.Logger.Warn("a maintenance is known to this agent alone (maintenance.store: file), and what is published is the word of one agent: " +
			"a maintenance that is entered at another one is not published, and it ends in Consul when another agent publishes. " +
			"With more agents than one set maintenance.store: consul")
	}
	return &part{run: p.Run, status: func() []status.Sink {
		var out []status.Sink
		for _, s := range p.Status() {
			out = append(out, meshStatus(s, o.External))
		}
		return out
	}}, nil
}

func meshOptions(cfg *config.Config) mesh.Options {
	m := cfg.Mesh
	o := mesh.Options{
		External: m.Mode == config.MeshExternal, KeyPrefix: m.Key + "/", SessionTTL: m.SessionTTL, Clusters: make(map[string]mesh.Settings),
	}
	ttl, primary := m.TTL, m.PrimaryTTL
	if m.WhenDead == config.DeadStay {
		ttl, primary = mesh.Never, mesh.Never
	}
	for _, cl := range cfg.Published() {
		s := mesh.Settings{
			Service: cl.MeshService(), WritePool: cl.Mesh.WritePool, ReadPool: cl.Mesh.ReadPool, Master: m.CompatTags,
			Tags: append(append([]string(nil), m.Tags...), cl.Mesh.Tags...),
		}
		if !o.External {
			s.Node, s.Sidecar, s.TTL, s.PrimaryTTL = cfg.MeshNode(cl), m.Sidecar, ttl, primary
		}
		o.Clusters[cl.Name] = s
	}
	return o
}

// meshStatus makes a sink of how a cluster's publishing fares.
func meshStatus(s mesh.Status, external bool) status.Sink {
	sink := status.Sink{
		Name: "mesh " + s.Cluster, State: status.SinkOK, Since: s.Since,
		Counters: map[string]uint64{"writes": s.Writes, "repairs": s.Repairs, "failures": s.Failures},
		Gauges:   map[string]uint64{"publisher": 0, "instances": uint64(s.Instances), "instances_up": uint64(s.Passing)},
	}
	switch {
	case s.Publishing:
		sink.Gauges["publisher"] = 1
		by := "the node on this host is published"
		if external {
			by = "published by this agent, " + s.Publisher
		}
		sink.Detail = fmt.Sprintf("%s; %d of %d instances take sessions", by, s.Passing, s.Instances)
		if !s.WrittenAt.IsZero() {
			sink.Detail += ", last written at " + s.WrittenAt.Format(time.TimeOnly)
			sink.Gauges["written_timestamp_seconds"] = uint64(s.WrittenAt.Unix())
		}
	case !s.Unrenewed.IsZero():
		sink.Detail = fmt.Sprintf("published by this agent, %s, as far as it knows: its session has not been renewed since %s; Consul ends it by %s, and another agent publishes from then on",
			s.Publisher, s.Unrenewed.Format(time.TimeOnly), s.Ends.Format(time.TimeOnly))
	case s.Publisher != "":
		sink.Detail = "published by another agent, " + s.Publisher
	case s.Waiting == "":
		sink.Detail = "published by nobody; this agent takes the lock as soon as it is free"
	}
	switch {
	case s.Err != nil:
		sink.State, sink.Error = status.SinkFailing, s.Err.Error()
	case s.Waiting != "" && (s.Publishing || s.Publisher == ""):
		sink.State, sink.Error = status.SinkWaiting, "what stands in Consul is left as it is: "+s.Waiting
	}
	return sink
}
