package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// consulMesh is the set-up of examples/consul-mesh: real nodes with an agent each, a
// Consul, and an application's sidecar, whose upstreams are f.write and f.read.
type consulMesh struct {
	*front
	consul  *lab.Consul
	agents  []*rig // in local mode one a node, else one
	dns     *net.Resolver
	program string
}

func newConsulMesh(tb testing.TB) *consulMesh {
	tb.Helper()
	labtest.Need(tb, lab.NeedConsul, lab.NeedEnvoy)
	m := &consulMesh{front: &front{rig: newRig(tb)}, program: buildProgram(tb)}
	var err error
	m.consul, err = m.lab.ConsulWith(tb.Context(), lab.ConsulOptions{DNS: true, Sidecars: 4})
	m.do(err)
	m.dns = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, m.consul.DNSAddr())
	}}
	m.write, m.read = m.addr(), m.addr()
	m.cluster = m.newCluster(lab.ClusterOptions{ProbeUser: "pgsteer"})
	m.reigns = []reign{{node: m.node("n1")}}
	return m
}

// configuration is the example's, changed by pairs.
func (m *consulMesh) configuration(pairs ...string) string {
	places := map[string]string{
		"10.0.0.1:5432": m.node("n1").Addr(), "10.0.0.2:5432": m.node("n2").Addr(), "10.0.0.3:5432": m.node("n3").Addr(),
		"127.0.0.1:8500": m.consul.Addr(), "/etc/pgsteer/probe.pw": m.password(m.cluster.Password("pgsteer")),
	}
	for i := 0; i < len(pairs); i += 2 {
		places[pairs[i]] = pairs[i+1]
	}
	return example(m.t, "consul-mesh/pgsteer.yaml", places)
}

// local starts an agent a node, each of which publishes its own, and their sidecars.
func (m *consulMesh) local() {
	m.t.Helper()
	for _, n := range m.cluster.Nodes() {
		r := m.rig
		if n.Name() != "n1" {
			r = newRigIn(m.t, m.lab, n.Name())
		}
		m.agents = append(m.agents, r)
		r.configure("%s", m.configuration("local: main/n1", "local: main/"+n.Name()))
	}
	m.initialize()
	for i, n := range m.cluster.Nodes() {
		m.agents[i].up()
		id := "pgsteer:main:" + n.Name()
		m.until(id, func() bool {
			_, err := m.consul.API(m.t.Context(), "GET", "agent/service/"+id+"-sidecar-proxy", "")
			return err == nil
		})
		m.proxy("sidecar.sh", id, nil)
	}
}

// initialize writes what Consul needs once, as the page says.
func (m *consulMesh) initialize(args ...string) {
	m.t.Helper()
	m.script(exec.CommandContext(m.t.Context(), m.program, append([]string{"consul-init", "-c", m.path, "--apply"}, args...)...))
	m.consulCommand("intentions.hcl", nil, "config", "write")
}

// app starts the application's sidecar and waits until both upstreams reach a node.
func (m *consulMesh) app() {
	m.t.Helper()
	port := func(addr string) string { return "local_bind_port = " + addr[strings.LastIndex(addr, ":")+1:] }
	m.consulCommand("app.hcl", map[string]string{"local_bind_port = 5000": port(m.write), "local_bind_port = 5001": port(m.read)}, "services", "register")
	m.proxy("sidecar.sh", "app", nil)
	m.until("both upstreams", func() bool { return m.reached(m.write) != 0 && m.reached(m.read) != 0 })
}

// consulCommand gives an example's file to Consul's program.
func (m *consulMesh) consulCommand(file string, places map[string]string, args ...string) {
	m.t.Helper()
	path := m.file(file)
	m.do(os.WriteFile(path, []byte(example(m.t, "consul-mesh/"+file, places)), 0o600))
	program, err := lab.ConsulProgram()
	m.do(err)
	m.script(exec.CommandContext(m.t.Context(), program, append(args, path)...))
}

// proxy starts an Envoy with what an example's script prints.
func (m *consulMesh) proxy(script, argument string, places map[string]string) {
	m.t.Helper()
	out := m.script(exec.CommandContext(m.t.Context(), "sh", "-c", example(m.t, "consul-mesh/"+script, places), script, argument))
	_, err := m.lab.Envoy(m.t.Context(), lab.EnvoyOptions{Bootstrap: out})
	m.do(err)
}

// script runs a command in the surroundings that Consul's own tools know.
func (m *consulMesh) script(cmd *exec.Cmd) string {
	m.t.Helper()
	program, err := lab.ConsulProgram()
	m.do(err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"),
		"CONSUL_HTTP_ADDR="+m.consul.Addr(), "CONSUL_GRPC_ADDR="+m.consul.GRPCAddr())
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("%s: %v: %s%s", cmd, err, out, &errs)
	}
	return string(out)
}

// named are the ports of the servers that DNS has for a name.
func (m *consulMesh) named(name string) string {
	_, srv, _ := m.dns.LookupSRV(m.t.Context(), "", "", name+".consul.") // an error is no server
	var ports []string
	for _, s := range srv {
		ports = append(ports, strconv.Itoa(int(s.Port)))
	}
	return strings.Join(ports, " ")
}

// answers are the three ways to ask for the primary, each with the port of the
// server that it leads to; "" and "0" are none.
func (m *consulMesh) answers() map[string]func() string {
	return map[string]func() string{
		"dns":      func() string { return m.named("primary.main.service") },
		"query":    func() string { return m.named("main-rw.query") },
		"upstream": func() string { return strconv.Itoa(m.reached(m.write)) },
	}
}

// moved makes a node the writer and returns how long after the decision of its agent
// each way led to it.
func (m *consulMesh) moved(to string) map[string]time.Duration {
	m.t.Helper()
	next := m.node(to)
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	var decider *rig
	for i, n := range m.cluster.Nodes() {
		if n.Name() == to {
			decider = m.agents[min(i, len(m.agents)-1)]
		}
	}
	ways := m.answers()
	const decision = "decision"
	ways[decision] = func() string {
		if v := decider.view("main"); v != nil && v.Snapshot.Writer == to {
			return strconv.Itoa(next.Port())
		}
		return ""
	}
	type arrival struct {
		way string
		at  time.Time
	}
	arrived := make(chan arrival, len(ways))
	for way, ask := range ways {
		go func() {
			at := pollFor(ctx, ask, strconv.Itoa(next.Port()))
			arrived <- arrival{way, at}
		}()
	}
	m.switchover(to)
	at := make(map[string]time.Time)
	for range ways {
		a := <-arrived
		if a.at.IsZero() {
			m.t.Errorf("%s did not lead to %s within %s", a.way, to, patience)
		}
		at[a.way] = a.at
	}
	out := make(map[string]time.Duration)
	for way := range m.answers() {
		out[way] = at[way].Sub(at[decision])
	}
	return out
}

// pollFor asks every 2 ms until it is told what it wants, and returns when; zero: ctx
// ended first.
func pollFor(ctx context.Context, ask func() string, want string) time.Time {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ask() != want {
		select {
		case <-ctx.Done():
			return time.Time{}
		case <-tick.C:
		}
	}
	return time.Now()
}

// reads wants every read to reach one of these nodes, and each of them some.
func (m *consulMesh) reads(names ...string) {
	m.t.Helper()
	seen := make(map[int]bool)
	m.until(fmt.Sprintf("reads at %v", names), func() bool {
		clear(seen)
		for range 20 {
			seen[m.reached(m.read)] = true
		}
		for _, name := range names {
			if !seen[m.node(name).Port()] {
				return false
			}
		}
		return len(seen) == len(names)
	})
}
