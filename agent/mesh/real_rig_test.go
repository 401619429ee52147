package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// site is a Consul of the lab and publishers of cluster main.
type site struct {
	t      *testing.T
	lab    *lab.Lab
	consul *lab.Consul
	dns    *net.Resolver
}

func newSite(t *testing.T, o lab.ConsulOptions) *site {
	t.Helper()
	t.Parallel() // most of the time they wait
	l := labtest.ForTest(t, lab.NeedConsul)
	o.DNS = true
	c, err := l.ConsulWith(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, lab: l, consul: c, dns: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, c.DNSAddr())
	}}}
}

// gate is the way of one publisher to Consul.
type gate struct {
	next *http.Transport
	cut  atomic.Bool

	mu    sync.Mutex
	asked []time.Time // when something was
}

func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	g.asked = append(g.asked, time.Now())
	g.mu.Unlock()
	if g.cut.Load() {
		return nil, errors.New("cut off")
	}
	return g.next.RoundTrip(req)
}

// publisher is one that runs.
type publisher struct {
	*Publisher
	r     *site
	views *latest.Map[string, topology.View]
	now   topology.Ticker
	alter func(*topology.View) // what it sees; nil: nothing
	stop  func()
	gen   uint64
}

func (r *site) start(at *lab.Consul, tokenFile string, more func(*Options)) *publisher {
	r.t.Helper()
	client, err := consul.NewClient(consul.ClientOptions{Address: at.Addr(), TokenFile: tokenFile})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &publisher{r: r, views: new(latest.Map[string, topology.View]), now: topology.NewTicker(time.Now)}
	o := Options{Client: client, Views: p.views, Now: p.now, External: true, Clusters: map[string]Settings{"main": settings}}
	if more != nil {
		more(&o)
	}
	if p.Publisher, err = New(o); err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	p.stop = func() { stop(); <-done; client.Close() }
	r.t.Cleanup(p.stop)
	return p
}

func (p *publisher) see(text string) {
	p.r.t.Helper()
	p.gen++
	for cluster := range p.o.Clusters {
		v := scene(p.r.t, p.now().Mono, text)
		v.Snapshot.Cluster, v.Snapshot.Generation, v.Snapshot.Urgent = cluster, p.gen, p.gen
		if p.alter != nil {
			p.alter(v)
		}
		p.views.Set(cluster, v)
	}
}

// api asks Consul and wants it to answer.
func (r *site) api(method, path, body string) string {
	r.t.Helper()
	out, err := r.consul.API(r.t.Context(), method, path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// is is what stands of service main, as rig.is has it.
func (r *site) is() string { return r.isOf("main") }

func (r *site) isOf(service string) string {
	is, err := r.instances(service)
	if err != nil {
		return err.Error()
	}
	return is
}

func (r *site) instances(service string) (string, error) {
	text, err := r.consul.API(r.t.Context(), http.MethodGet, "health/service/"+service, "")
	if err != nil {
		return "", err
	}
	var entries []struct {
		Service struct {
			ID   string
			Tags []string
		}
		Checks []struct{ CheckID, Status string }
	}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return "", err
	}
	var out []string
	for _, e := range entries {
		_, node, _ := strings.Cut(strings.TrimPrefix(e.Service.ID, "pgsteer:"), ":")
		for _, c := range e.Checks {
			if c.CheckID == e.Service.ID {
				out = append(out, strings.Join(append(append([]string{node}, e.Service.Tags...), c.Status), " "))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", "), nil
}

// hosts are the addresses of a name below service.consul, "" when there are none.
func (r *site) hosts(name string) string {
	ips, _ := r.dns.LookupHost(r.t.Context(), name+".service.consul.") // an error is no address
	slices.Sort(ips)
	return strings.Join(ips, " ")
}

// query are the addresses that a prepared query gives.
func (r *site) query(name string) string {
	ips, _ := r.dns.LookupHost(r.t.Context(), name+".query.consul.") // an error is no address
	return strings.Join(ips, " ")
}

func (r *site) within(d time.Duration, what string, ok func() bool) time.Duration {
	r.t.Helper()
	begin := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := begin.Add(d); !ok(); <-tick.C {
		if time.Now().After(end) {
			r.t.Fatalf("waited %s for %s; there is: %s", d, what, r.is())
		}
	}
	return time.Since(begin)
}

func (r *site) stands(d time.Duration, want string) time.Duration {
	r.t.Helper()
	return r.within(d, want, func() bool { return r.is() == want })
}

// names wants DNS to have one address for the primary and one for the replica.
func (r *site) names(d time.Duration, primary, replica string) time.Duration {
	r.t.Helper()
	return r.within(d, "the names", func() bool { return r.hosts("primary.main") == primary && r.hosts("replica.main") == replica })
}

// withSidecar publishes n1 as the node on this host, with a sidecar.
func withSidecar(o *Options) {
	on("n1")(o)
	s := o.Clusters["main"]
	s.Sidecar = true
	o.Clusters["main"] = s
}

// manual returns a block of docs/consul.md by the comment that it begins with.
func manual(t *testing.T, begins string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/consul.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "\n"+begins)
	block, _, ended := strings.Cut(block, "\n```")
	if !found || !ended {
		t.Fatalf("the manual has no block that begins with %q", begins)
	}
	return begins + block
}

// preparedQuery is the one of the manual.
func preparedQuery(t *testing.T) string {
	return strings.TrimPrefix(manual(t, "# POST /v1/query"), "# POST /v1/query")
}
