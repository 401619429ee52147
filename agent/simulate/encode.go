package simulate

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Recording is what an agent saw of one cluster, and what it made of it.
type Recording struct {
	About   string
	Cluster config.Cluster
	Zone    string // the agent's
	// Start is the reading of both clocks from which the scenario's times count.
	Start topology.Clock
	// Saved is what the agent knew at the start as it would know it after a
	// restart; nil: nothing.
	Saved *topology.Saved
	// Rounds in the order of time.
	Rounds []Round
}

// Round is one evaluation of the rules, and what was folded before it.
type Round struct {
	At           topology.Clock
	Observations []topology.Observation // in the order in which they were folded
	// Decision is what was decided; nil: the same as in the round before.
	Decision *topology.Snapshot
	// Still: between the round before and this one the agent decided nothing,
	// though it should have; its process stood still.
	Still bool
}

// EncodeScenario writes a scenario that reproduces each observation exactly: at
// the same moment of both clocks, with the same number and content, and decided
// on in the same round. What the agent decided stands beside it as notes, and
// its last decision as what is expected. Load reads it. Texts that are not UTF-8
// are made so. How the agent logs in is left out. An error is one of the writer,
// or names what the format cannot hold.
func EncodeScenario(w io.Writer, r Recording) error {
	doc := newFields()
	doc.text("about", r.About)
	doc.text("name", r.Cluster.Name)
	cluster, err := encodeCluster(r.Cluster)
	if err != nil {
		return fmt.Errorf("encode cluster %s: %w", r.Cluster.Name, err)
	}
	doc.put("cluster", cluster)
	doc.text("zone", r.Zone)
	doc.text("probing", "off")
	start := newFields()
	start.text("mono", time.Duration(r.Start.Mono).String())
	start.text("wall", stamp(r.Start.Wall))
	doc.flow("start", start)
	e := encoder{start: r.Start, cluster: r.Cluster.Name}
	if r.Saved != nil {
		doc.put("saved", e.saved(*r.Saved))
	}
	doc.put("steps", e.steps(r.Rounds))
	d, err := yaml.NewDumper(w, yaml.WithV4Defaults())
	if err != nil {
		return fmt.Errorf("encode a scenario: %w", err)
	}
	if err := d.Dump(doc.n); err != nil {
		return fmt.Errorf("write the scenario of cluster %s: %w", r.Cluster.Name, err)
	}
	return d.Close()
}

// fields builds a map; empty values are left out.
type fields struct{ n *yaml.Node }

func newFields() fields { return fields{&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}} }

func scalar(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ToValidUTF8(s, "\ufffd")}
}

func list(all ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: all}
}

func (f fields) put(key string, n *yaml.Node) { f.n.Content = append(f.n.Content, scalar(key), n) }

func (f fields) text(key, s string) {
	if s != "" {
		f.put(key, scalar(s))
	}
}

// raw writes numbers and words, which need no quotes.
func (f fields) raw(key, s string) {
	if s != "" && s != "0" && s != "0s" && s != "unknown" && s != "false" {
		f.put(key, &yaml.Node{Kind: yaml.ScalarNode, Value: s})
	}
}

func (f fields) number(key string, n uint64)            { f.raw(key, strconv.FormatUint(n, 10)) }
func (f fields) tri(key string, t topology.Tri)         { f.raw(key, t.String()) }
func (f fields) duration(key string, d time.Duration)   { f.raw(key, d.String()) }
func (f fields) address(key string, a topology.Address) { f.text(key, a.String()) }

func (f fields) lsn(key string, l topology.LSN) {
	if l != 0 {
		f.raw(key, l.String())
	}
}

func (f fields) time(key string, t time.Time) {
	if !t.IsZero() {
		f.text(key, stamp(t))
	}
}

// flow puts a map on one line.
func (f fields) flow(key string, below fields) {
	if len(below.n.Content) > 0 {
		below.n.Style = yaml.FlowStyle
		f.put(key, below.n)
	}
}

func (f fields) list(key string, all []*yaml.Node) {
	if len(all) > 0 {
		f.put(key, list(all...))
	}
}

func (f fields) tags(tags map[string]string) {
	below := newFields()
	for _, k := range sortedKeys(tags) {
		below.put(strings.ToValidUTF8(k, "\ufffd"), scalar(tags[k]))
	}
	f.flow("tags", below)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// encodeCluster writes what differs from a cluster of which nothing is said.
func encodeCluster(c config.Cluster) (*yaml.Node, error) {
	standard := config.DefaultCluster(c.Name)
	out := newFields()
	out.text("authority", string(c.Authority))
	if c.Authority == topology.AuthorityPatroni {
		if err := out.differs("patroni", c.Patroni, standard.Patroni); err != nil {
			return nil, err
		}
	}
	if c.Authority == topology.AuthorityMonitor {
		// Nobody is asked in a replay, and the address is not what the rules need.
		m := standard.Monitor
		m.Formation, m.Group, m.Interval = c.Monitor.Formation, c.Monitor.Group, c.Monitor.Interval
		m.Monitors = []topology.Address{{Host: documentationHost(0), Port: 5432}}
		if err := out.differs("pg_auto_failover", m, standard.Monitor); err != nil {
			return nil, err
		}
	}
	nodes := newFields()
	for _, n := range c.Nodes {
		spec := newFields()
		spec.address("address", n.Address)
		spec.tags(n.Tags)
		nodes.flow(n.Name, spec)
	}
	if len(c.Nodes) > 0 {
		out.put("nodes", nodes.n)
	}
	out.text("inventory", c.Inventory)
	if err := out.differs("policy", c.Policy, standard.Policy); err != nil {
		return nil, err
	}
	pools := newFields()
	for _, p := range c.Pools {
		if err := encodePool(pools, p, standard.Pools); err != nil {
			return nil, err
		}
	}
	out.put("pools", pools.n)
	paces := func(p config.Postgres) config.Postgres { // and no word on how to log in
		q := standard.Postgres
		q.Interval, q.ConnectTimeout, q.QueryTimeout, q.LoginEvery = p.Interval, p.ConnectTimeout, p.QueryTimeout, p.LoginEvery
		return q
	}
	return out.n, out.differs("postgres", paces(c.Postgres), standard.Postgres)
}

func encodePool(pools fields, p config.Pool, standard config.Pools) error {
	out := newFields()
	out.text("mode", string(p.Mode))
	for _, s := range standard {
		if s.Mode != p.Mode {
			continue
		}
		s.Sessions = p.Sessions // these are written below, in a file's words
		below, err := difference(p, s)
		if err != nil {
			return err
		}
		out.n.Content = append(out.n.Content, below.Content...)
	}
	sessions := newFields()
	for code, v := range p.Sessions {
		word := map[topology.Verdict]string{topology.Drain: "keep", topology.Down: "end"}[v]
		sessions.text(string(code), word)
	}
	out.flow("sessions", sessions)
	pools.put(p.Name, out.n)
	return nil
}

// differs puts the keys in which a value differs from the standard.
func (f fields) differs(key string, is, standard any) error {
	below, err := difference(is, standard)
	if err == nil && len(below.Content) > 0 {
		f.put(key, below)
	}
	return err
}

func difference(is, standard any) (*yaml.Node, error) {
	a, err := valueNode(is)
	if err != nil {
		return nil, err
	}
	b, err := valueNode(standard)
	if err != nil {
		return nil, err
	}
	return without(a, b), nil
}

// valueNode is a value as YAML has it.
func valueNode(v any) (*yaml.Node, error) {
	b, err := yaml.Marshal(v)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// without is a map without the keys that are the same in another one.
func without(a, b *yaml.Node) *yaml.Node {
	out := newFields().n
	for i := 0; i+1 < len(a.Content); i += 2 {
		key, value := a.Content[i], a.Content[i+1]
		var other *yaml.Node
		for j := 0; j+1 < len(b.Content); j += 2 {
			if b.Content[j].Value == key.Value {
				other = b.Content[j+1]
			}
		}
		if other != nil && value.Kind == yaml.MappingNode && other.Kind == yaml.MappingNode {
			value = without(value, other)
			if len(value.Content) == 0 {
				continue
			}
		} else if other != nil && value.Kind == other.Kind && value.Value == other.Value && len(value.Content)+len(other.Content) == 0 {
			continue
		}
		out.Content = append(out.Content, key, value)
	}
	return out
}
