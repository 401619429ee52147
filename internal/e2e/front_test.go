package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/xds"
)

// envoyHost is where Envoy's listeners are, on the same ports as HAProxy's on
// 127.0.0.1: one configuration serves both.
const envoyHost = "127.0.0.2"

// front is a rig with a cluster of three nodes and balancers before it.
type front struct {
	*rig
	o       frontOptions
	cluster *lab.Cluster
	haproxy *lab.HAProxy
	envoy   *lab.Envoy

	write, read           string // HAProxy's addresses of the pools
	envoyWrite, envoyRead string
	links                 map[string]*lab.Link // by node, with frontOptions.links
	reigns                []reign
}

// frontOptions shape a front; the zero value has no balancer.
type frontOptions struct {
	haproxy, envoy bool
	// files has the agent write files for Envoys too.
	files bool
	// links puts a link before each node; everybody but the nodes uses those.
	links bool
	// inventory lists these nodes in a file instead of all in the configuration.
	inventory []string
	// policy, primary and replica are added to the cluster's policy and to its pools.
	policy, primary, replica string
	// pools are more of them, a line each.
	pools string
	// refuse has the pools tell clients why no node takes them.
	refuse bool
	// top is added to the configuration as it is.
	top string
	// external leaves starting the agent to the test.
	external func(*front)
	// authority gives the nodes certificates, with Envoy's address and publicName in
	// them; clients then insist on TLS and on these. Nil: no TLS.
	authority *lab.Authority
}

// publicName is how people call the database, and rootCert who they trust.
const (
	publicName = "db.example.org"
	rootCert   = "root.crt"
)

// reign is the time in which a node was the writer. A session on it before from
// is wrong; from until on it must get no new one.
type reign struct {
	node        *lab.Node
	from, until time.Time
}

// newFront starts a cluster, the agent and the balancers, and returns when
// pgsteer has decided and the balancers obey.
func newFront(tb testing.TB, o frontOptions) *front {
	tb.Helper()
	var needs []string
	if o.haproxy {
		needs = append(needs, lab.NeedHAProxy)
	}
	if o.envoy {
		needs = append(needs, lab.NeedEnvoy)
	}
	f := &front{rig: newRig(tb, needs...), o: o}
	f.write, f.read = f.addr(), f.addr()
	if o.refuse {
		f.o.primary += fmt.Sprintf(", refuse: %q", f.addr())
		f.o.replica += fmt.Sprintf(", refuse: %q", f.addr())
	}
	f.envoyWrite, f.envoyRead = atEnvoy(f.write), atEnvoy(f.read)
	f.cluster = f.newCluster(lab.ClusterOptions{Authority: o.authority, Names: []string{envoyHost, publicName}})
	if o.authority != nil {
		f.replace(rootCert, o.authority.PEM())
	}
	f.reigns = []reign{{node: f.cluster.Primary(), from: time.Now()}}
	if o.links {
		f.link()
	}
	if o.files {
		f.do(os.Mkdir(f.file(envoyFiles), 0o700))
	}
	f.writeConfig()
	if o.external != nil {
		o.external(f)
	} else {
		f.up()
	}
	if o.haproxy {
		f.startHAProxy()
	}
	if o.envoy {
		f.startEnvoy()
	}
	return f
}

func atEnvoy(addr string) string { return strings.Replace(addr, "127.0.0.1", envoyHost, 1) }

// newCluster starts a cluster in the rig's lab.
func (r *rig) newCluster(o lab.ClusterOptions) *lab.Cluster {
	r.t.Helper()
	c, err := r.lab.Cluster(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// nodeMap writes nodes as the configuration and an inventory have them.
func nodeMap(nodes map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		parts = append(parts, fmt.Sprintf("%s: %q", name, nodes[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// addresses are the addresses by which everybody reaches the nodes named, or all.
func (f *front) addresses(names ...string) map[string]string {
	out := make(map[string]string)
	for _, n := range f.cluster.Nodes() {
		switch {
		case len(names) > 0 && !slices.Contains(names, n.Name()):
		case f.links[n.Name()] != nil:
			out[n.Name()] = f.links[n.Name()].Addr()
		default:
			out[n.Name()] = n.Addr()
		}
	}
	return out
}

// link puts a link before each node.
func (f *front) link() {
	f.t.Helper()
	f.links = make(map[string]*lab.Link)
	for _, n := range f.cluster.Nodes() {
		k, err := f.lab.Link(f.t.Context(), n.Addr())
		if err != nil {
			f.t.Fatal(err)
		}
		f.links[n.Name()] = k
	}
}

// envoyFiles is the folder for frontOptions.files.
const envoyFiles = "envoy-files"

// writeConfig writes the configuration that HAProxy and Envoy are steered by.
func (f *front) writeConfig() {
	f.t.Helper()
	f.configure("%s", f.config())
}

// config is the configuration, but for the agent's own listeners and folders.
func (f *front) config() string {
	f.t.Helper()
	more := ""
	if f.o.files {
		more = ", files: " + f.file(envoyFiles)
	}
	nodes := "nodes: " + nodeMap(f.addresses())
	if f.o.inventory != nil {
		f.list(f.o.inventory...)
		nodes = "inventory: " + f.file("nodes.yaml")
	}
	templates := ""
	if f.o.haproxy {
		templates = f.haproxyConfig()
	}
	return fmt.Sprintf(`postgres: {user: %s, password_file: %q}
envoy: {listen_host: %s%s}
clusters:
  main:
    %s
    policy: {%s}
    pools:
      primary: {mode: write, listen: %q%s}
      replica: {mode: read, listen: %q%s}
%s%s%s`, f.cluster.ProbeUser(), f.password(f.cluster.Password(f.cluster.ProbeUser())), envoyHost, more,
		nodes, f.o.policy, f.write, f.o.primary, f.read, f.o.replica, f.o.pools, templates, f.o.top)
}

// haproxyConfig has the agent render HAProxy's file and speak to its sockets.
func (r *rig) haproxyConfig() string {
	return fmt.Sprintf(`haproxy: {sockets: [%q]}
templates:
  - name: haproxy
    files: [{builtin: haproxy, destination: %q}]
    check: [haproxy, -c, -q, -f, "{{.Staged}}"]
    master_socket: %q
`, r.lab.SocketPath("admin.sock"), r.file("haproxy.cfg"), r.lab.SocketPath("haproxy-master.sock"))
}

// list writes the inventory: these nodes.
func (f *front) list(names ...string) {
	f.t.Helper()
	f.replace("nodes.yaml", nodeMap(f.addresses(names...))+"\n")
}

// file is a path in the lab's folder.
func (r *rig) file(name string) string { return filepath.Join(r.lab.Dir(), name) }

// replace writes a file aside and moves it into place.
func (r *rig) replace(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file(name+".new"), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.file(name+".new"), r.file(name)); err != nil {
		r.t.Fatal(err)
	}
}

// startHAProxy starts HAProxy on the rendered file. The reload that pgsteer owes
// since it wrote the file comes then; afterwards there is nothing left to do.
func (f *front) startHAProxy() {
	f.t.Helper()
	f.until("haproxy.cfg", func() bool {
		_, err := os.Stat(f.file("haproxy.cfg"))
		return err == nil
	})
	var err error
	f.haproxy, err = f.lab.HAProxy(f.t.Context(), lab.HAProxyOptions{
		ConfigFile: f.file("haproxy.cfg"), AdminSocket: f.lab.SocketPath("admin.sock"),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.until("the template to be applied", func() bool { return f.sink("template haproxy").State == "applied" })
	f.until("HAProxy to let writes and reads through", func() bool { return f.reached(f.write) != 0 && f.reached(f.read) != 0 })
}

// startEnvoy starts an Envoy with the printed bootstrap.
func (f *front) startEnvoy() {
	f.startEnvoyBy(xds.BootstrapOptions{Servers: []topology.Address{f.serves()}})
}

// serves is where the agent serves Envoys.
func (r *rig) serves() topology.Address {
	r.t.Helper()
	at, err := topology.ParseAddress(r.xds)
	r.do(err)
	return at
}

func (f *front) startEnvoyBy(o xds.BootstrapOptions) {
	f.t.Helper()
	var err error
	f.envoy, err = f.lab.Envoy(f.t.Context(), lab.EnvoyOptions{Bootstrap: xds.Bootstrap(o)})
	f.do(err)
	f.until("Envoy to let writes and reads through", func() bool { return f.reached(f.envoyWrite) != 0 && f.reached(f.envoyRead) != 0 })
}

// sink is how a sink of the agent fares, as status tells.
func (r *rig) sink(name string) status.Sink {
	for _, s := range r.report().Sinks {
		if s.Name == name {
			return s
		}
	}
	return status.Sink{}
}

// report is what `pgsteer status -o json` prints; empty while the agent is away.
func (r *rig) report() (rep status.Report) {
	if code, body := r.get(r.status, "/api/v1/status"); code != http.StatusOK || json.Unmarshal([]byte(body), &rep) != nil {
		return status.Report{}
	}
	return rep
}

// worker is the process number of HAProxy's worker: another one means a reload.
func (f *front) worker() int {
	f.t.Helper()
	w, err := f.haproxy.Workers(f.t.Context())
	if err != nil || len(w) != 1 {
		f.t.Fatalf("HAProxy's workers: %v, %v", w, err)
	}
	return w[0]
}

// node returns a node of the cluster.
func (f *front) node(name string) *lab.Node { return f.cluster.Node(name) }

// writer is the node that takes writes by the test's own book.
func (f *front) writer() *lab.Node { return f.reigns[len(f.reigns)-1].node }

// succeeded notes a change of the writer.
func (f *front) succeeded(next *lab.Node, tl lab.Timeline) {
	f.reigns[len(f.reigns)-1].until = tl.Promoted
	f.reigns = append(f.reigns, reign{node: next, from: tl.NewWritable})
}

// switchover moves the writer in an orderly way.
func (f *front) switchover(to string) lab.Timeline {
	f.t.Helper()
	tl, err := f.cluster.Switchover(f.t.Context(), to)
	if err != nil {
		f.t.Fatal(err)
	}
	f.succeeded(f.node(to), tl)
	return tl
}

// failover promotes the standby that has received most. The old writer is
// dead, frozen or out of reach.
func (f *front) failover() lab.Timeline {
	f.t.Helper()
	var best *lab.Node
	var most topology.LSN
	for _, n := range f.cluster.Nodes() {
		if n == f.writer() {
			continue
		}
		if at := f.received(n); best == nil || at > most {
			best, most = n, at
		}
	}
	tl, err := f.cluster.Failover(f.t.Context(), best.Name())
	if err != nil {
		f.t.Fatal(err)
	}
	f.succeeded(best, tl)
	return tl
}

func (f *front) received(n *lab.Node) topology.LSN {
	f.t.Helper()
	c, err := n.Conn(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	var text string
	err = c.QueryRow(f.t.Context(), "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text").Scan(&text)
	if err != nil {
		f.t.Fatal(err)
	}
	at, err := topology.ParseLSN(text)
	if err != nil {
		f.t.Fatal(err)
	}
	return at
}

// rejoin rebuilds a node as a standby and waits until it serves reads.
func (f *front) rejoin(n *lab.Node) {
	f.t.Helper()
	if err := f.cluster.Rejoin(f.t.Context(), n.Name()); err != nil {
		f.t.Fatal(err)
	}
	f.is("main", "replica", n.Name(), topology.Up, topology.CodeReplica)
}

// do fails the test on an error.
func (r *rig) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
