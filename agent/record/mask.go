package record

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Mask replaces names, addresses and identifiers in the whole session, the same
// one by the same one everywhere: nodes are n1, n2 … in the order of their names,
// the cluster is c1, hosts are of the networks for documentation (RFC 5737 and
// RFC 3849). Ports, times, positions and timelines stay. An error means that the
// session must not be shown; it is unchanged then.
func (s *Session) Mask() error {
	m := newMasker(s)
	var r simulate.Recording
	for range 2 { // what only later proves to be the name of a host is masked from the beginning on
		var err error
		if r, err = m.recording(s.Recording); err != nil {
			return fmt.Errorf("mask the recording of cluster %s: %w", s.Recording.Cluster.Name, err)
		}
	}
	s.Recording, s.Ended, s.masked = r, m.text(s.Ended), true
	return nil
}

// masker knows what each name becomes.
type masker struct {
	names map[string]string // whole words of texts, also in small letters
	nodes map[string]string
	hosts map[string]string
	other map[string]string // applications, sessions: by kind and text
	next  map[string]int    // numbers given out, by kind

	longest []string // names that may be a part of other words, the longest first
}

func newMasker(s *Session) *masker {
	m := &masker{
		names: make(map[string]string), nodes: make(map[string]string), hosts: make(map[string]string),
		other: make(map[string]string), next: make(map[string]int),
	}
	m.name(s.user, m.numbered("user", s.user))
	m.name(s.database, m.numbered("database", s.database))
	c := s.Recording.Cluster
	m.name(c.Patroni.Namespace, m.namespace(c.Patroni))
	m.name(strings.Trim(c.Patroni.Scope, "/"), "c1")
	m.name(c.Name, "c1")
	nodes := nodeNames(s.Recording)
	width := len(strconv.Itoa(len(nodes)))
	for i, name := range nodes {
		m.nodes[name] = fmt.Sprintf("n%0*d", width, i+1) // in the order of names, by which rules break ties
		m.name(name, m.nodes[name])
	}
	for name := range m.names {
		if len(name) > short {
			m.longest = append(m.longest, name)
		}
	}
	slices.SortFunc(m.longest, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return m
}

func (m *masker) name(name, mask string) {
	if name != "" {
		m.names[strings.ToLower(name)], m.names[name] = mask, mask
	}
}

// nodeNames are all names of nodes that a recording knows, sorted.
func nodeNames(r simulate.Recording) []string {
	all := make(map[string]bool)
	list := func(nodes []topology.Node) {
		for _, n := range nodes {
			all[n.Name] = true
		}
	}
	list(r.Cluster.Nodes)
	if r.Saved != nil {
		list(r.Saved.Nodes)
	}
	for _, round := range r.Rounds {
		for _, o := range round.Observations {
			if o.Source.Kind == topology.SourcePostgres {
				all[o.Source.Name] = true
			}
			if o.Nodes != nil {
				list(o.Nodes.Nodes)
			}
			if o.Authority != nil {
				all[o.Authority.Leader] = true
				for _, member := range o.Authority.Members {
					all[member.Name] = true
				}
			}
		}
		if round.Decision != nil {
			list(round.Decision.Nodes)
		}
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// node is a node's name; one that was not counted is no node of the cluster.
func (m *masker) node(name string) string {
	if name == "" {
		return ""
	}
	if mask, known := m.nodes[name]; known {
		return mask
	}
	return m.numbered("x", name)
}

// numbered replaces a text by a word and a number of its own.
func (m *masker) numbered(word, text string) string {
	if text == "" {
		return ""
	}
	key := word + " " + text
	if m.other[key] == "" {
		m.next[word]++
		m.other[key] = word + strconv.Itoa(m.next[word])
	}
	return m.other[key]
}

// documented is how many hosts 192.0.2.0/24 has.
const documented = 254

// host is a name or an IP address, without a port.
func (m *masker) host(host string) string {
	if host == "" {
		return ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if mask, known := m.hosts[host]; known {
		return mask
	}
	six := strings.Contains(host, ":")
	if m.next["four"] == documented {
		six = true
	}
	if six {
		m.next["six"]++
		m.hosts[host] = fmt.Sprintf("2001:db8::%x", m.next["six"])
	} else {
		m.next["four"]++
		m.hosts[host] = fmt.Sprintf("192.0.2.%d", m.next["four"])
	}
	return m.hosts[host]
}

func (m *masker) address(a topology.Address) topology.Address {
	a.Host = m.host(a.Host)
	return a
}

// system is a system identifier; zero is none.
func (m *masker) system(id uint64) uint64 {
	if id == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimPrefix(m.numbered("system", strconv.FormatUint(id, 10)), "system"), 10, 64)
	return n
}

// application is a standby's name: mostly, but not always, that of a node.
func (m *masker) application(name string) string {
	if mask, known := m.nodes[name]; known {
		return mask
	}
	return m.numbered("application", name)
}

func (m *masker) source(id topology.SourceID) topology.SourceID {
	switch id.Kind {
	case topology.SourcePostgres:
		id.Name = m.node(id.Name)
	case topology.SourceFile:
		if id.Name != fileOfConfig {
			id.Name = m.path(id.Name)
		}
	case topology.SourceLocal:
	case topology.SourceMonitor:
		at := max(0, strings.LastIndexByte(id.Name, '/'))
		id.Name = m.formation(id.Name[:at]) + id.Name[at:]
	default:
		id.Name = m.scope(id.Name)
	}
	return id
}

// fileOfConfig is the name of the source of the nodes that the configuration lists.
const fileOfConfig = "config"

func (m *masker) scope(name string) string {
	if mask, known := m.names[strings.Trim(name, "/")]; known {
		return mask
	}
	return m.numbered("scope", name)
}

// formation is pg_auto_failover's; its default tells nothing.
func (m *masker) formation(name string) string {
	if name == config.DefaultCluster("").Monitor.Formation {
		return name
	}
	return m.scope(name)
}

// namespace is Patroni's; its default tells nothing.
func (m *masker) namespace(p config.Patroni) string {
	if p.Namespace == config.DefaultCluster("").Patroni.Namespace {
		return p.Namespace
	}
	return m.numbered("namespace", p.Namespace)
}

// path is the name of a file; it stays absolute, so that it means the same
// wherever the scenario lies.
func (m *masker) path(name string) string {
	if name == "" {
		return ""
	}
	return "/" + m.numbered("file", name)
}

func (m *masker) recording(r simulate.Recording) (simulate.Recording, error) {
	out := simulate.Recording{About: r.About, Zone: m.text(r.Zone), Start: r.Start} // as a tag's value
	var err error
	if out.Cluster, err = m.cluster(r.Cluster); err != nil {
		return out, err
	}
	if r.Saved != nil {
		saved := m.saved(*r.Saved)
		out.Saved = &saved
	}
	for _, round := range r.Rounds {
		masked := simulate.Round{At: round.At, Still: round.Still}
		for _, o := range round.Observations {
			masked.Observations = append(masked.Observations, m.observation(o))
		}
		if round.Decision != nil {
			masked.Decision = m.decision(round.Decision)
		}
		out.Rounds = append(out.Rounds, masked)
	}
	return out, nil
}

func (m *masker) cluster(c config.Cluster) (config.Cluster, error) {
	out := config.DefaultCluster("c1")
	out.Authority, out.Policy, out.Nodes, out.Inventory = c.Authority, c.Policy, m.nodeList(c.Nodes), m.path(c.Inventory)
	out.Patroni.Scope, out.Patroni.Namespace = m.scope(c.Patroni.Scope), m.namespace(c.Patroni)
	out.Monitor.Formation, out.Monitor.Group = m.formation(c.Monitor.Formation), c.Monitor.Group
	out.Postgres = config.Postgres{
		Interval: c.Postgres.Interval, ConnectTimeout: c.Postgres.ConnectTimeout, QueryTimeout: c.Postgres.QueryTimeout, LoginEvery: c.Postgres.LoginEvery,
	}
	out.Pools = nil
	for _, p := range c.Pools {
		p.Listen, p.Refuse = m.listen(p.Listen), m.listen(p.Refuse)
		if p.Weights != nil {
			weights := make(config.Weights, len(p.Weights))
			for node, percent := range p.Weights {
				weights[m.node(node)] = percent
			}
			p.Weights = weights
		}
		masked := m.text(p.Select.String())
		if err := p.Select.UnmarshalText([]byte(masked)); err != nil {
			return out, fmt.Errorf("select of pool %s: %w", p.Name, err)
		}
		out.Pools = append(out.Pools, p)
	}
	return out, nil
}

func (m *masker) listen(a config.ListenAddress) config.ListenAddress {
	host, port, err := net.SplitHostPort(string(a))
	if err != nil || host == "" {
		return a
	}
	return config.ListenAddress(net.JoinHostPort(m.host(host), port))
}

func (m *masker) nodeList(all []topology.Node) []topology.Node {
	var out []topology.Node
	for _, n := range all {
		out = append(out, topology.Node{Name: m.node(n.Name), Address: m.address(n.Address), Tags: m.tags(n.Tags)})
	}
	return out
}

func (m *masker) tags(tags map[string]string) map[string]string {
	if tags == nil {
		return nil
	}
	out := make(map[string]string, len(tags))
	for key, value := range tags {
		switch key {
		case topology.TagNoLoadBalance, topology.TagNoFailover, topology.TagReplicateFrom, topology.TagZone, topology.TagSource:
		default:
			key = m.text(key) // as in a pool's select
		}
		out[key] = m.text(value)
	}
	return out
}

func (m *masker) saved(s topology.Saved) topology.Saved {
	out := topology.Saved{
		Version: s.Version, Cluster: "c1", Writer: m.node(s.Writer), SystemID: m.system(s.SystemID), Timeline: s.Timeline,
		Nodes: m.nodeList(s.Nodes), SavedAt: s.SavedAt, Verdicts: make(map[string]map[string]topology.Verdict, len(s.Verdicts)),
	}
	for pool, nodes := range s.Verdicts {
		out.Verdicts[pool] = make(map[string]topology.Verdict, len(nodes))
		for node, v := range nodes {
			out.Verdicts[pool][m.node(node)] = v
		}
	}
	for node, at := range s.Lost {
		if out.Lost == nil {
			out.Lost = make(map[string]time.Time)
		}
		out.Lost[m.node(node)] = at
	}
	return out
}

// decision keeps of a decision what a scenario shows.
func (m *masker) decision(s *topology.Snapshot) *topology.Snapshot {
	out := &topology.Snapshot{Cluster: "c1", Writer: m.node(s.Writer)}
	for _, p := range s.Pools {
		pool := topology.PoolVerdicts{Pool: p.Pool, Mode: p.Mode, Fallback: p.Fallback}
		for _, n := range p.Nodes {
			v := topology.NodeVerdict{Node: m.node(n.Node), Address: m.address(n.Address), Verdict: n.Verdict, Weight: n.Weight}
			for _, r := range n.Reasons {
				v.Reasons = append(v.Reasons, topology.Reason{Code: r.Code, Text: m.text(r.Text), Since: r.Since})
			}
			pool.Nodes = append(pool.Nodes, v)
		}
		out.Pools = append(out.Pools, pool)
	}
	return out
}
