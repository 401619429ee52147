package mesh

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// outage is a Consul that goes away, with all that publishes into it: two agents in mode
// external for service main, and two hosts in mode local for service side, whose servers
// say their names to who comes through the sidecars.
type outage struct {
	*site
	all      map[string]*observed
	servers  map[string]topology.Address
	upstream string
	through  string        // where the application was led last, "" for nowhere
	lost     time.Time     // since when that is nowhere
	longest  time.Duration // that it was
}

// observed is a publisher whose requests and log are looked at.
type observed struct {
	*publisher
	gate *gate
	log  *logtest.Log
	said int // bytes of the log that are of before
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	labtest.Need(t, lab.NeedEnvoy)
	r := &outage{site: newSite(t, lab.ConsulOptions{Sidecars: 3}), all: make(map[string]*observed), servers: make(map[string]topology.Address)}
	for _, node := range []string{"n1", "n2"} {
		r.servers[node] = r.server(node)
	}
	for _, name := range []string{"one", "two"} {
		r.observe(name, func(o *Options) { o.Name = name })
	}
	for _, node := range []string{"n1", "n2"} {
		p := r.observe(node, func(o *Options) {
			o.External = false
			o.Owner = node
			o.Clusters = map[string]Settings{"side": {Service: "side", Node: node, Sidecar: true, TTL: 3 * time.Minute, PrimaryTTL: 30 * time.Second}}
		})
		p.alter = func(v *topology.View) {
			for i, n := range v.Snapshot.Nodes {
				v.Snapshot.Nodes[i].Address = r.servers[n.Name]
				for _, pool := range v.Snapshot.Pools {
					pool.Nodes[i].Address = r.servers[n.Name]
				}
			}
		}
	}
	return r
}

func (r *outage) observe(name string, more func(*Options)) *observed {
	r.t.Helper()
	p := &observed{gate: &gate{next: http.DefaultTransport.(*http.Transport).Clone()}, log: new(logtest.Log)}
	r.t.Cleanup(p.gate.next.CloseIdleConnections)
	p.publisher = r.start(r.consul, "", func(o *Options) {
		client, err := consul.NewClient(consul.ClientOptions{Address: r.consul.Addr(), Transport: p.gate})
		if err != nil {
			r.t.Fatal(err)
		}
		o.Client, o.Logger = client, slog.New(slog.NewTextHandler(p.log, nil))
		more(o)
	})
	r.all[name] = p
	return p
}

// server listens as a node would, and says its name.
func (r *outage) server(node string) topology.Address {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	r.t.Cleanup(func() { _ = ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, node) // who does not listen gets nothing
			_ = c.Close()
		}
	}()
	return topology.Address{Host: "127.0.0.1", Port: uint16(ln.Addr().(*net.TCPAddr).Port)}
}

// see gives every publisher the same view.
func (r *outage) see(text string) {
	r.t.Helper()
	for _, p := range r.all {
		p.see(text)
	}
}

// meshed starts the sidecars of both nodes and of an application with an upstream.
func (r *outage) meshed() {
	r.t.Helper()
	r.api(http.MethodPut, "config", `{"Kind":"service-resolver","Name":"side","DefaultSubset":"primary","Subsets":{"primary":{"Filter":"Service.Meta.role == primary"}}}`)
	port, err := r.lab.FreePort()
	if err != nil {
		r.t.Fatal(err)
	}
	r.upstream = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	r.api(http.MethodPut, "agent/service/register", fmt.Sprintf(`{"Name":"app","Port":1,"Connect":{"SidecarService":{"Proxy":{"Upstreams":[{"DestinationName":"side","LocalBindPort":%d}]}}}}`, port))
	program, err := lab.ConsulProgram()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range []string{ID("side", "n1"), ID("side", "n2"), "app"} {
		cmd := exec.CommandContext(r.t.Context(), program, "connect", "envoy", "-sidecar-for", id, "-bootstrap")
		cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR="+r.consul.Addr(), "CONSUL_GRPC_ADDR="+r.consul.GRPCAddr(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
		bootstrap, err := cmd.Output()
		if err != nil {
			r.t.Fatalf("%s: %v", cmd, err)
		}
		if _, err := r.lab.Envoy(r.t.Context(), lab.EnvoyOptions{Bootstrap: string(bootstrap)}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// reached is the node that the application reaches, "" for none.
func (r *outage) reached() string {
	c, err := net.DialTimeout("tcp", r.upstream, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // it is open
	name, _ := io.ReadAll(c)                       // an error is no name
	return string(name)
}

// reach looks where the application is led, for a while or until it is led to a node, and
// wants both services to have both instances whenever Consul answers.
func (r *outage) reach(d time.Duration, node string) (took time.Duration) {
	r.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); ; <-tick.C {
		took = time.Since(begin)
		if r.through = r.reached(); r.through != "" {
			r.lost = time.Time{}
		} else if r.lost.IsZero() {
			r.lost = time.Now()
		} else {
			r.longest = max(r.longest, time.Since(r.lost))
		}
		for _, service := range []string{"main", "side"} {
			if is, err := r.instances(service); err == nil && (!strings.Contains(is, "n1 ") || !strings.Contains(is, "n2 ")) {
				r.t.Errorf("service %s has lost an instance: %s", service, is)
			}
		}
		switch {
		case node != "" && r.through == node:
			return took
		case took < d:
		case node != "":
			r.t.Fatalf("waited %s for %s through the sidecars; there is %q, %s", d, node, r.through, r.isOf("side"))
		default:
			return took
		}
	}
}

// mark forgets what was said and asked.
func (r *outage) mark() {
	for _, p := range r.all {
		p.said = len(p.log.String())
	}
	r.lost, r.longest = time.Time{}, 0
}

// flood is how often a publisher has asked within a time, and at most in one second of it.
func (p *observed) flood(from, to time.Time) (all, most int) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	seconds := make(map[int]int)
	for _, at := range p.gate.asked {
		if at.After(from) && at.Before(to) {
			all++
			seconds[int(at.Sub(from)/time.Second)]++
		}
	}
	for _, n := range seconds {
		most = max(most, n)
	}
	return all, most
}

// whole waits until both services say what is decided, and DNS names the primary.
func (r *outage) whole(is, primary string) time.Duration {
	r.t.Helper()
	took := r.within(soon, is, func() bool {
		return r.isOf("main") == is && r.isOf("side") == is && r.hosts("primary.main") == primary && r.hosts("primary.side") == "127.0.0.1"
	})
	r.within(soon, "no trouble", func() bool {
		for _, p := range r.all {
			if p.Status()[0].Err != nil {
				return false
			}
		}
		return true
	})
	return took
}

// quiet wants the logs since the mark to tell of the trouble and of its end, in few lines,
// and of nothing that was taken away or left to others.
func (r *outage) quiet() {
	r.t.Helper()
	for name, p := range r.all {
		said := p.log.String()[p.said:]
		begins, ends := "not everything is published; what stands in Consul stays", "everything is published again"
		if name == "two" { // it does not publish
			begins, ends = "watch on Consul fails, the last value stays", "watch on Consul works again"
		}
		if strings.Count(said, "\n") > 12 || !strings.Contains(said, begins) || !strings.Contains(said, ends) ||
			!strings.Contains(said, "connection refused") || strings.Contains(said, "leaves") || strings.Contains(said, "deregistered=[p") {
			r.t.Errorf("%s says:\n%s", name, said)
		}
	}
	if s, o := r.all["one"].Status()[0], r.all["two"].Status()[0]; !s.Publishing || o.Publisher != "one" || o.Writes != 0 {
		r.t.Errorf("the one is %+v, the other %+v", s, o)
	}
}

// Consul is killed and started again, at once and after two minutes in which the roles
// change. In both modes nothing is lost, taken away or left to another publisher, what is
// decided by then is published within 5 s, and Consul is not flooded. The application's
// sidecar leads on meanwhile, and after that to the new primary.
func TestRealOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("kills Consul for two minutes")
	}
	const away = 2 * time.Minute
	r := newOutage(t)
	r.all["one"].see(n1Leads)
	r.within(soon, "the publisher", func() bool { return r.all["one"].Status()[0].Publishing })
	r.see(n1Leads)
	r.whole(first, "10.0.0.1")
	r.meshed()
	r.reach(3*soon, "n1")
	r.within(soon, "checks of the sidecars every second", func() bool { return strings.Count(r.api(http.MethodGet, "agent/checks", ""), " every 1s") == 2 })
	r.within(3*soon, "sidecars that listen", func() bool {
		return !strings.Contains(r.api(http.MethodGet, "health/service/side-sidecar-proxy", ""), `"critical"`)
	})

	for _, node := range []string{"n1", "n2"} { // once with its sidecar, and once with the sidecar's check
		if s := r.all[node].Status()[0]; s.Writes != 2 || s.Repairs != 0 {
			t.Errorf("%s is %+v", node, s)
		}
	}

	r.mark()
	r.killed()
	r.started()
	t.Logf("whole %s after a restart", r.whole(first, "10.0.0.1"))
	r.reach(2*soon, "")
	t.Logf("the application reached nobody for %s at most", r.longest)
	if r.longest > soon {
		t.Error("that is too long")
	}
	r.quiet()

	r.mark()
	r.killed()
	begin := time.Now()
	r.reach(away/4, "")
	r.see(n2Leads)
	r.reach(away-time.Since(begin), "")
	back := time.Now()
	if r.longest != 0 || r.through != "n1" {
		t.Errorf("without Consul the application is led to %q, and was led nowhere for %s", r.through, r.longest)
	}
	r.started()
	t.Logf("whole %s after Consul was back", r.whole(second, "10.0.0.2"))
	t.Logf("the application is led to the new primary after %s", r.reach(time.Minute, "n2")) // when its Envoy asks Consul again
	if r.longest > soon {
		t.Errorf("it was led nowhere for %s", r.longest)
	}
	r.quiet()
	for name, p := range r.all {
		all, most := p.flood(begin, back)
		t.Logf("%s has asked %d times in %s without Consul, %d times in a second at most", name, all, away, most)
		if all > 4*int(away/time.Second) || most > 15 {
			t.Error("that is too often")
		}
	}
}

func (r *outage) killed() {
	r.t.Helper()
	if err := r.consul.Kill(); err != nil {
		r.t.Fatal(err)
	}
	r.within(soon, "the trouble", func() bool {
		for _, p := range r.all {
			if p.Status()[0].Err == nil {
				return false
			}
		}
		return true
	})
}

func (r *outage) started() {
	r.t.Helper()
	if err := r.consul.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}
