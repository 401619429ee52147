package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// node is what a login at a node has shown.
type node struct {
	cluster config.Cluster
	topology.Node
	failure *topology.Failure
	facts   *facts // nil when the login or the question failed
	trouble error  // of the question
	// asked and answered are around the question, by this host's clock.
	asked, answered time.Time
}

func (n node) subject() string { return n.cluster.Name + "/" + n.Name + " " + n.Address.String() }

// facts is the answer to factsQuery.
type facts struct {
	Role      string `json:"role"`
	Superuser bool   `json:"superuser"`
	Beyond    string `json:"beyond"` // other rights that a probe does not need
	Limit     int    `json:"limit"`  // -1: none
	Monitor   bool   `json:"monitor"`
	TLS       bool   `json:"tls"`
	Max       int    `json:"max"`
	Reserved  int    `json:"reserved"`
	Used      int    `json:"used"`
	NowUS     int64  `json:"now_us"`
}

// factsQuery asks for everything at once. It needs no right beyond the login.
const factsQuery = `SELECT json_build_object(
 'role', current_user,
 'superuser', r.rolsuper,
 'beyond', concat_ws(', ', CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END, CASE WHEN r.rolcreatedb THEN 'CREATEDB' END,
   CASE WHEN r.rolreplication THEN 'REPLICATION' END, CASE WHEN r.rolbypassrls THEN 'BYPASSRLS' END),
 'limit', r.rolconnlimit,
 'monitor', pg_has_role('pg_monitor', 'usage'),
 'tls', (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
 'max', current_setting('max_connections')::int,
 'reserved', current_setting('superuser_reserved_connections')::int,
 'used', (SELECT count(*) FROM pg_stat_activity WHERE backend_type IS NULL OR backend_type = 'client backend'),
 'now_us', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM pg_roles r WHERE r.rolname = current_user`

// nodes lists a cluster's nodes: those of the running agent, else those written in
// the configuration.
func (x *exam) nodes(ctx context.Context, cl config.Cluster) []topology.Node {
	if a := x.ask(ctx); a != nil && len(a.Nodes[cl.Name]) > 0 {
		return a.Nodes[cl.Name]
	}
	return cl.Nodes
}

// together is how many servers are asked at the same time.
const together = 16

// visit logs in to every node, and remembers what was seen.
func (x *exam) visit(ctx context.Context) []node {
	if x.seen != nil || x.Login == nil {
		return x.seen
	}
	for _, cl := range x.Config.Clusters {
		for _, n := range x.nodes(ctx, cl) {
			x.seen = append(x.seen, node{cluster: cl, Node: n})
		}
	}
	each(len(x.seen), func(i int) { x.look(ctx, &x.seen[i]) })
	return x.seen
}

// each does n things, some of them at the same time.
func each(n int, do func(i int)) {
	places := make(chan struct{}, together)
	var all sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	all.Wait()
}

func (x *exam) look(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, f := x.Login(ctx, n.cluster.Name, n.Node)
	if f != nil {
		n.failure = f
		return
	}
	defer s.Close()
	n.asked = x.Now()
	text, err := s.Value(ctx, factsQuery)
	n.answered = x.Now()
	if err == nil {
		n.facts = new(facts)
		err = json.Unmarshal([]byte(text), n.facts)
	}
	if err != nil {
		n.facts, n.trouble = nil, err
	}
}

// remedy says for each class of failure of a login what to do. The login is
// described below a key of the configuration.
func remedy(class topology.FailureClass, pg config.Postgres, key string) string {
	switch class {
	case topology.FailAuth:
		return fmt.Sprintf("in its pg_hba.conf, `host %s %s THIS-HOST/32 scram-sha-256`, then pg_reload_conf(); and the role's password in password_file", pg.Database, pg.User)
	case topology.FailTLS:
		return "compare sslmode " + string(pg.SSLMode) + " and sslrootcert with the server's ssl, its certificate, and hostssl in pg_hba.conf"
	case topology.FailDatabase:
		return "name a database that is there: " + key + ".database"
	case topology.FailName:
		return "correct the name, or the resolver of this host"
	case topology.FailLocal:
		return "see what this host lacks: descriptors, ports, memory, a file"
	case topology.FailRefused, topology.FailReset:
		return "see that PostgreSQL runs there, and that listen_addresses and the port are right"
	case topology.FailTimeout, topology.FailUnreachable:
		return "see that no firewall drops the packets, and that the server does not hang"
	case topology.FailSlots:
		return "the server is full: a CONNECTION LIMIT for those who fill it, or more max_connections"
	default:
		return "see PostgreSQL's log there"
	}
}

func logins(ctx context.Context, x *exam) []Result {
	if x.Login == nil {
		return nil
	}
	var all []Result
	for _, cl := range x.Config.Clusters {
		if len(x.nodes(ctx, cl)) == 0 {
			all = append(all, Result{
				Subject: "cluster " + cl.Name, Level: Warn, Tried: "find its nodes in the configuration and at the running agent",
				Found: "no node is known", Do: "start the agent, which learns them from its sources, and run doctor again",
			})
		}
	}
	for _, n := range x.visit(ctx) {
		pg := n.cluster.Postgres
		r := Result{Subject: n.subject(), Level: OK, Tried: fmt.Sprintf("log in as %s to database %s", pg.User, pg.Database), Found: "logged in as " + pg.User}
		switch {
		case n.failure != nil:
			r.Level, r.Found, r.Do = Fail, string(n.failure.Class)+": "+n.failure.Text, remedy(n.failure.Class, pg, "postgres")
		case n.trouble != nil:
			r.Level, r.Tried, r.Found, r.Do = Fail, "ask for the role's rights", n.trouble.Error(), "see PostgreSQL's log there"
		}
		all = append(all, r)
	}
	return all
}

// known are the nodes that answered.
func (x *exam) known(ctx context.Context) []node {
	var all []node
	for _, n := range x.visit(ctx) {
		if n.facts != nil {
			all = append(all, n)
		}
	}
	return all
}

// leastLimit leaves every agent of a pair its session and its fresh login, and those
// that a restart left behind for a moment.
const leastLimit = 4

func probeRole(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, n := range x.known(ctx) {
		f := n.facts
		r := Result{Subject: n.subject(), Tried: "read pg_roles", Level: Warn}
		switch {
		case f.Superuser:
			r.Found, r.Do = f.Role+" is a superuser: whoever reads its password has the database", "ALTER ROLE "+f.Role+" NOSUPERUSER; GRANT pg_monitor TO "+f.Role
		case !f.Monitor:
			r.Level, r.Found, r.Do = Fail, f.Role+" lacks pg_monitor: WAL receivers, waiting commits and some settings stay unknown", "GRANT pg_monitor TO "+f.Role
		case f.Beyond != "":
			r.Found, r.Do = f.Role+" has rights that a probe does not need: "+f.Beyond, "take them away with ALTER ROLE"
		case f.Limit < 0:
			r.Found, r.Do = f.Role+" has no connection limit", "ALTER ROLE "+f.Role+" CONNECTION LIMIT 10"
		case f.Limit < leastLimit:
			r.Found = fmt.Sprintf("%s has a connection limit of %d; each agent holds one session and makes a second one now and then", f.Role, f.Limit)
			r.Do = "ALTER ROLE " + f.Role + " CONNECTION LIMIT 10"
		default:
			r.Level, r.Found = OK, fmt.Sprintf("%s has pg_monitor, no more, and at most %d connections", f.Role, f.Limit)
		}
		all = append(all, r)
	}
	return all
}

func nodeTLS(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, n := range x.known(ctx) {
		r := Result{Subject: n.subject(), Tried: "read pg_stat_ssl"}
		all = append(all, encrypted(r, n.facts.TLS, n.cluster.Postgres.SSLMode, n.Address.Host))
	}
	return all
}

// encrypted judges whether a session is, or need not be.
func encrypted(r Result, is bool, mode config.SSLMode, host string) Result {
	r.Level, r.Found = OK, "encrypted (sslmode "+string(mode)+")"
	ip := net.ParseIP(host)
	switch {
	case is:
	case mode == config.SSLDisable:
		r.Found = "not encrypted, as sslmode disable says"
	case ip != nil && ip.IsLoopback():
		r.Found = "not encrypted, and stays on this host"
	default:
		r.Level, r.Found, r.Do = Warn, "not encrypted: the server offers no TLS, and sslmode "+string(mode)+" takes that", "ssl = on at the server, then sslmode: verify-full, or require at least"
	}
	return r
}

func slots(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, n := range x.known(ctx) {
		f := n.facts
		left := f.Max - f.Reserved - f.Used
		r := Result{
			Subject: n.subject(), Tried: "count pg_stat_activity", Level: OK,
			Found: fmt.Sprintf("%d of %d slots are left", max(left, 0), f.Max-f.Reserved),
		}
		if left*10 < f.Max {
			r.Level, r.Do = Warn, "less than a tenth: HAProxy's maxconn per server, a pooler, or more max_connections"
		}
		all = append(all, r)
	}
	return all
}

// How far clocks may be apart.
const (
	clockWarn = time.Second
	clockFail = time.Minute
)

func clocks(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, n := range x.known(ctx) {
		there := time.UnixMicro(n.facts.NowUS)
		// The server read its clock between the two; what is within is no difference.
		var off time.Duration
		switch {
		case there.Before(n.asked):
			off = there.Sub(n.asked)
		case there.After(n.answered):
			off = there.Sub(n.answered)
		}
		r := Result{Subject: n.subject(), Tried: "compare clock_timestamp() with this host's clock", Level: OK, Found: "no difference"}
		if off != 0 {
			r.Found = fmt.Sprintf("the node's clock is %s off", off.Round(time.Millisecond))
		}
		switch off = off.Abs(); {
		case off > clockFail:
			r.Level, r.Do = Fail, "run chrony or systemd-timesyncd on both; certificates and maintenance windows go by the clock"
		case off > clockWarn:
			r.Level, r.Do = Warn, "run chrony or systemd-timesyncd on both"
		}
		all = append(all, r)
	}
	return all
}
