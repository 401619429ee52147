package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// SourceCatalog is the kind of a Catalog in observations; the name is that of the
// service. It is another kind than Patroni's keys, which tell who leads.
const SourceCatalog topology.SourceKind = "catalog"

// pollCatalog is how often one of very many services is asked for.
const pollCatalog = time.Minute

// CatalogOptions describe a service of Consul whose instances are a cluster's
// nodes. Cluster, Service, Client and Now are required.
type CatalogOptions struct {
	Cluster string // as in observations
	Service string
	// Tag narrows the service to the instances that have it; empty: all.
	Tag string
	// NodeNames says what an instance's node is called; empty: NamedByNode.
	NodeNames NodeNames
	Client    *Client
	Now       topology.Ticker
	Logger    *slog.Logger // nil discards
}

// Catalog is a service in Consul's catalog as a source of nodes. Whether its
// checks pass does not matter: a node that is ill is a node.
type Catalog struct {
	o      CatalogOptions
	log    *slog.Logger
	watch  *Watch[instances]
	report func(topology.Observation)
	seq    uint64
	before []topology.Node // of the newest list
	warned map[fault]bool
}

var _ watchers.Source = (*Catalog)(nil)

// NewCatalog prepares a source; it asks nothing yet. An error is a fault of the
// options.
func NewCatalog(o CatalogOptions) (*Catalog, error) {
	switch {
	case o.Client == nil || o.Now == nil:
		return nil, errors.New("a watcher of Consul's catalog needs a client and a clock")
	case o.Cluster == "" || o.Service == "":
		return nil, errors.New("a watcher of Consul's catalog needs the names of a cluster and of its service")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Catalog{o: o, log: o.Logger.With("cluster", o.Cluster, "service", o.Service)}
	c.watch = NewWatch(WatchOptions[instances]{
		Client: o.Client, What: "service " + o.Service, Now: o.Now, Logger: c.log,
		Query: c.query, Equal: instances.equal,
		Empty:   func(in instances) bool { return len(in) == 0 },
		Deliver: c.take,
		Poll: func() time.Duration {
			if o.Client.fleet.many() {
				return pollCatalog
			}
			return 0
		},
	})
	return c, nil
}

// ID is the source's identity in observations.
func (c *Catalog) ID() topology.SourceID {
	return topology.SourceID{Kind: SourceCatalog, Name: c.o.Service}
}

// Stats returns the counters.
func (c *Catalog) Stats() WatchStats { return c.watch.Stats() }

// Run watches until ctx ends; its error is always nil. It may be called once.
func (c *Catalog) Run(ctx context.Context, report func(topology.Observation)) error {
	defer c.o.Client.fleet.join(ctx, &ship{flip: watchers.NewNudge()})()
	c.report = report
	c.watch.Run(ctx)
	return nil
}

func (c *Catalog) query(_ context.Context, q *api.QueryOptions) (instances, *api.QueryMeta, error) {
	// The tag is looked for here: a filtered query over a streamed view has told
	// old results (consul PR 12640).
	all, meta, err := c.o.Client.api.Catalog().Service(c.o.Service, "", q)
	return reduceInstances(all), meta, err
}

// take reports what the watch tells. An answer that may be old is no news: the
// sure one follows.
func (c *Catalog) take(r Result[instances]) {
	if r.Failure != nil {
		c.observe(r, topology.Observation{Failure: r.Failure})
		return
	}
	if r.Unsure != "" {
		return
	}
	nodes, faults := c.nodes(r.Value)
	c.warn(faults)
	if len(nodes) == 0 && len(r.Value) > 0 {
		c.observe(r, topology.Observation{Failure: &topology.Failure{
			Class: topology.FailContent,
			Text: fmt.Sprintf("none of the %d instances of service %s in %s can be a node: %s; the nodes known so far stay",
				len(r.Value), c.o.Service, c.o.Client.who(), why(faults)),
		}})
		return
	}
	switch {
	case r.Empty:
		c.log.Warn("Consul has no instance of the service, so nothing is known of its nodes; is its name right?")
	case !slices.EqualFunc(c.before, nodes, sameNode):
		c.log.Info("instances changed", "nodes", len(nodes))
	}
	c.before = nodes
	c.observe(r, topology.Observation{Nodes: &topology.NodeList{Nodes: nodes, ConfirmedEmpty: r.Empty}})
}

func (c *Catalog) observe(r Result[instances], o topology.Observation) {
	c.seq++
	o.Cluster, o.Source, o.Seq, o.AskedAt, o.At = c.o.Cluster, c.ID(), c.seq, r.AskedAt, c.o.Now()
	c.report(o)
}

// warn logs each fault when it appears, not again while it stays.
func (c *Catalog) warn(faults []fault) {
	now := make(map[fault]bool, len(faults))
	for _, f := range faults {
		if !c.warned[f] && !now[f] {
			c.log.Warn("an instance of the service is left out, or not called as it is in Consul", "instance", f.key, "err", f.err)
		}
		now[f] = true
	}
	c.warned = now
}

// why gives the first fault; without any, the tag is missing everywhere.
func why(faults []fault) string {
	if len(faults) == 0 {
		return "none has the tag that is asked for"
	}
	return strings.Join([]string{faults[0].key, faults[0].err}, ": ")
}
