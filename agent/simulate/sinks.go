package simulate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/healthapi"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// sinks answer what balancers would ask. They begin anew with the agent.
type sinks struct {
	run      *run
	check    *agentcheck.Server
	health   *healthapi.Server
	status   *status.Server
	standing map[string]string // the writers as Envoy has them, by its name of the pool
	set      resources.Set     // of the newest decision
	config   *string           // the file as an expectation saw it last; nil: none did
}

func newSinks(r *run) (*sinks, error) {
	now := func() topology.Clock { return r.now }
	clusters := func() []string { return []string{r.s.Name} }
	s := &sinks{run: r, standing: make(map[string]string)}
	var errCheck, errHealth error
	s.check, errCheck = agentcheck.New(agentcheck.Options{Views: &r.views, Now: now, Clusters: clusters})
	o := healthapi.Options{Views: &r.views, Now: now, Saved: r.savedVerdict}
	if r.s.local != "" {
		o.Local = healthapi.NodeRef{Cluster: r.s.Name, Node: r.s.local}
	}
	s.health, errHealth = healthapi.New(o)
	s.status = status.New(status.Options{
		Views: &r.views, Now: now, Clusters: clusters,
		Policy: func(string) topology.Policy { return r.policy },
		Agent: func() status.Agent {
			return status.Agent{Version: "simulated", StartedAt: r.s.start.Wall, ConfigAt: r.s.start.Wall}
		},
		Sinks: func() []status.Sink { return nil },
	})
	return s, errors.Join(errCheck, errHealth)
}

// savedVerdict is the verdict of before the agent's last start.
func (r *run) savedVerdict(_, pool, node string) topology.Verdict {
	if r.before == nil {
		return topology.Undecided
	}
	return r.before.Verdicts[pool][node]
}

// take is told of every decision that differs, as Envoy's server is.
func (s *sinks) take(snap *topology.Snapshot) error {
	if !s.run.s.usesEDS {
		return nil
	}
	set, err := resources.Build(snap, resources.Settings{Standing: func(cluster, pool string) (string, bool) {
		w, known := s.standing[resources.Name(cluster, pool)]
		return w, known
	}})
	if err != nil {
		return err
	}
	s.set = set
	maps.Copy(s.standing, set.Writers)
	return nil
}

// endpoints are the endpoints of a pool as Envoy gets them, "node=HEALTH" by
// name, and false for a pool of which nothing is said.
func (s *sinks) endpoints(name string) (map[string]string, bool) {
	for i, c := range s.set.Clusters {
		if c.GetName() != name {
			continue
		}
		out := make(map[string]string)
		for _, l := range s.set.Endpoints[i].GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				out[e.GetEndpoint().GetObservabilityName()] = e.GetHealthStatus().String()
			}
		}
		return out, true
	}
	return nil, false
}

// agentCheck is the line that HAProxy gets, without its end; "" is no answer.
func (s *sinks) agentCheck(request string) string {
	return strings.TrimSuffix(string(s.check.Answer([]byte(request))), "\n")
}

// reply collects an HTTP answer.
type reply struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *reply) Header() http.Header         { return r.header }
func (r *reply) WriteHeader(code int)        { r.code = cmp.Or(r.code, code) }
func (r *reply) Write(b []byte) (int, error) { r.WriteHeader(http.StatusOK); return r.body.Write(b) }

// request is a question over HTTP.
type request struct{ path, host string }

// get asks a handler; code 0 is a connection closed without an answer.
func get(h http.Handler, q request) (r *reply, err error) {
	target, err := url.ParseRequestURI(q.path)
	if err != nil {
		return nil, err
	}
	r = &reply{header: make(http.Header)}
	defer func() {
		switch p := recover(); p {
		case nil:
			r.WriteHeader(http.StatusOK)
		case http.ErrAbortHandler: // the value itself is what is thrown
			r.code = 0
		default:
			err = fmt.Errorf("the answer to %s ended in %v", q.path, p)
		}
	}()
	h.ServeHTTP(r, &http.Request{Method: http.MethodGet, URL: target, Host: q.host, Header: make(http.Header), RequestURI: q.path})
	return r, nil
}

// metric returns the value of a series, and false when there is none.
func (s *sinks) metric(series string) (float64, bool, error) {
	r, err := get(s.status, request{path: "/metrics"})
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(r.body.String()) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if i < 0 || line[0] == '#' || normalSeries(line[:i]) != normalSeries(series) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		return v, true, err
	}
	return 0, false, nil
}

// normalSeries writes the labels of a series in one order, without blanks.
func normalSeries(s string) string {
	name, rest, labelled := strings.Cut(s, "{")
	if !labelled {
		return s
	}
	var labels []string
	for l := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(rest), "}"), ",") {
		if l = strings.TrimSpace(l); l != "" {
			labels = append(labels, l)
		}
	}
	return strings.TrimSpace(name) + "{" + strings.Join(sorted(labels), ",") + "}"
}

// Where the rendered file has HAProxy ask and listen when the cluster's pools
// name no address. Only the text is made of it.
const (
	renderAgent = "127.0.0.1:7431"
	renderPort  = 5000
)

// haproxy is the built-in HAProxy template for the nodes that are known now.
func (s *sinks) haproxy() (string, error) {
	r := s.run
	settings := render.Settings{Agent: netip.MustParseAddrPort(renderAgent), Listen: make(map[render.PoolID][]netip.AddrPort)}
	for i, p := range r.s.cluster.Pools {
		at, err := netip.ParseAddrPort(string(p.Listen))
		if err != nil {
			at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(renderPort+i))
		}
		settings.Listen[render.PoolID{Cluster: r.s.Name, Pool: p.Name}] = []netip.AddrPort{at}
	}
	text, _ := builtin.Text(builtin.HAProxy)
	b, err := render.Render(render.Template{Name: builtin.HAProxy, Text: text}, render.ViewOf([]*topology.Snapshot{r.snap}, settings))
	return string(b), err
}
