package consultest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Weights are those of an instance.
type Weights struct{ Passing, Warning int }

// Check is the check of an instance, as Consul's API writes it.
type Check struct {
	Node, CheckID, Name, Status, Output, Notes string
	ServiceID, ServiceName                     string
	// ServiceTags are those that the instance had when the check was written.
	ServiceTags []string

	TTL time.Duration `json:"-"` // after which it is critical unless it was fed; zero: never
	Fed time.Time     `json:"-"`
}

// AgentNode is the node of the agent itself, on which its own services are.
const AgentNode = "fake"

// SetService changes an instance behind the back of whoever registered it.
func (a *Agent) SetService(node, id string, change func(*Service)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.services[serviceID{node, id}]
	change(&s)
	a.register(s)
}

// SetCheck writes a check behind the back of whoever writes it else.
func (a *Agent) SetCheck(c Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setCheck(c)
}

// Forget makes the agent lose its own services and checks, as the restart of a
// client agent without data does.
func (a *Agent) Forget() { a.Deregister(AgentNode, "") }

// Published returns the instances of a service with their checks, by ID.
func (a *Agent) Published(service string) map[string]Instance {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]Instance)
	for _, s := range a.instances(service) {
		out[s.ServiceID] = Instance{Service: s, Check: a.check(serviceID{s.Node, s.ServiceID})}
	}
	return out
}

// Everywhere returns the instances of a service by node and ID.
func (a *Agent) Everywhere(service string) []Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.instances(service)
}

// Instance is an instance and the check that has its ID.
type Instance struct {
	Service
	Check Check
}

// The functions below need a.mu.

// check returns a check as it is now.
func (a *Agent) check(id serviceID) Check {
	c := a.checks[id]
	if c.TTL > 0 && time.Since(c.Fed) >= c.TTL {
		c.Status, c.Output = "critical", "TTL expired"
	}
	return c
}

// setCheck writes a check. The same again is no write.
func (a *Agent) setCheck(c Check) {
	id := serviceID{c.Node, c.CheckID}
	c.ServiceTags = a.services[serviceID{c.Node, c.ServiceID}].ServiceTags
	before, after := string(mustJSON(a.checks[id])), string(mustJSON(c))
	a.putCheck(id, c)
	if before != after {
		a.index++
		a.catalog.last, a.catalog.of[c.ServiceName] = a.index, a.index
		a.broadcast()
	}
}

// dropChecks removes the checks of an instance.
func (a *Agent) dropChecks(of serviceID) {
	for _, id := range a.checksOf.of(of) {
		a.dropCheck(id)
	}
}

type agentService struct {
	Kind                 string `json:",omitempty"`
	ID, Service, Address string
	Tags                 []string
	Meta                 map[string]string
	Port                 int
	Weights              Weights
	EnableTagOverride    bool
}

func (s Service) agent() agentService {
	kind := ""
	if strings.HasSuffix(s.ServiceID, sidecarSuffix) {
		kind = "connect-proxy"
	}
	return agentService{
		Kind: kind,
		ID:   s.ServiceID, Service: s.ServiceName, Address: s.ServiceAddress, Tags: s.ServiceTags, Meta: s.ServiceMeta, Port: s.ServicePort,
		Weights: s.ServiceWeights, EnableTagOverride: s.ServiceEnableTagOverride,
	}
}

func (s agentService) on(node, address string) Service {
	return Service{
		Node: node, Address: address, ServiceID: s.ID, ServiceName: s.Service, ServiceTags: s.Tags, ServiceAddress: s.Address,
		ServicePort: s.Port, ServiceMeta: s.Meta, ServiceWeights: s.Weights, ServiceEnableTagOverride: s.EnableTagOverride,
	}
}

// lookupHealth returns the instances of a service with node and checks.
func (a *Agent) lookupHealth(name string, f Fault) find {
	found := a.lookupService(name, f)
	type entry struct {
		Node    Node
		Service agentService
		Checks  []Check
	}
	entries := []entry{}
	if list, ok := found.body.([]Service); ok {
		for _, s := range list {
			e := entry{Node: Node{s.Node, s.Address, a.nodes[s.Node].Meta}, Service: s.agent(), Checks: []Check{}}
			for _, id := range a.checksOf.of(serviceID{s.Node, s.ServiceID}) {
				e.Checks = append(e.Checks, a.check(id))
			}
			entries = append(entries, e)
		}
	}
	found.body = entries
	return found
}

// lookupState returns the checks of nodes whose meta has what is asked for. Of filters it
// knows that by the beginning of an ID alone.
func (a *Agent) lookupState(r Request, f Fault) find {
	key, value, byMeta := strings.Cut(r.Query.Get("node-meta"), ":")
	begins := strings.TrimSuffix(strings.TrimPrefix(r.Query.Get("filter"), `CheckID matches "^`), `"`)
	found := find{index: max(a.catalog.last, 1)}
	checks := []Check{}
	for id := range a.checks {
		c := a.check(id)
		switch {
		case byMeta && a.nodes[c.Node].Meta[key] != value, !strings.HasPrefix(c.CheckID, begins), f.Empty:
		case a.hides(c.ServiceName):
			found.filtered = true
		default:
			checks = append(checks, c)
		}
	}
	slices.SortFunc(checks, func(a, b Check) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.CheckID, b.CheckID))
	})
	found.body = checks
	return found
}

// op is one operation of a transaction that writes.
type op struct {
	KV *struct {
		Verb, Key, Session string
		Value              []byte
	}
	Node *struct {
		Verb string
		Node Node
	}
	Service *struct {
		Verb, Node string
		Service    agentService
	}
	Check *struct {
		Verb  string
		Check Check
	}
}

// commitsOf reads a transaction that writes to the catalog, with checks of locks, or
// takes locks.
func commitsOf(body []byte) ([]op, bool) {
	var ops []op
	if json.Unmarshal(body, &ops) != nil {
		return nil, false
	}
	writes := false
	for _, o := range ops {
		switch {
		case o.KV != nil && o.KV.Verb == "lock":
			writes = true
		case o.KV != nil && o.KV.Verb != "check-session":
			return nil, false
		case o.Node != nil, o.Service != nil, o.Check != nil:
			writes = true
		}
	}
	return ops, writes
}

// commit does all or nothing, and tells every operation that is refused.
func (a *Agent) commit(req *http.Request, ops []op) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := map[string]bool{}
	var refused []any
	refuse := func(i int, why string) { refused = append(refused, map[string]any{"OpIndex": i, "What": why}) }
	for i, o := range ops {
		switch {
		case o.KV != nil && o.KV.Verb == "lock":
			if _, ok := a.sessions[o.KV.Session]; !ok {
				refuse(i, "invalid session "+strconv.Quote(o.KV.Session))
			} else if holder := a.pairs[o.KV.Key].Session; holder != "" && holder != o.KV.Session {
				refuse(i, "failed to lock key "+strconv.Quote(o.KV.Key)+", lock is already held")
			}
		case o.KV != nil && (o.KV.Session == "" || a.pairs[o.KV.Key].Session != o.KV.Session):
			refuse(i, "failed session check for key "+strconv.Quote(o.KV.Key))
		case o.Node != nil:
			known[o.Node.Node.Node] = true
		case o.Service != nil && a.nodes[o.Service.Node].Node == "" && !known[o.Service.Node]:
			refuse(i, "Missing node registration")
		}
	}
	if len(refused) > 0 {
		return respond(req, http.StatusConflict, mustJSON(map[string]any{"Errors": refused}), http.Header{})
	}
	for _, o := range ops {
		switch {
		case o.KV != nil && o.KV.Verb == "lock":
			a.acquire(o.KV.Key, o.KV.Value, o.KV.Session)
		case o.Node != nil:
			a.nodes[o.Node.Node.Node] = o.Node.Node
		case o.Service != nil && o.Service.Verb == "delete":
			a.deregister(o.Service.Node, o.Service.Service.ID)
		case o.Service != nil:
			a.register(o.Service.Service.on(o.Service.Node, a.nodes[o.Service.Node].Address))
		case o.Check != nil:
			a.setCheck(o.Check.Check)
		}
	}
	return respond(req, http.StatusOK, []byte(`{"Results":[],"Errors":null}`), http.Header{})
}

const sidecarSuffix = "-sidecar-proxy"

// agentCommand serves the agent's own services and checks.
func (a *Agent) agentCommand(req *http.Request, r Request) *http.Response {
	path := strings.TrimPrefix(r.Path, "/agent/")
	id := func(prefix string) (serviceID, bool) {
		name, ok := strings.CutPrefix(path, prefix)
		return serviceID{AgentNode, name}, ok
	}
	missing := func(what string) *http.Response {
		return respond(req, http.StatusNotFound, []byte("unknown "+what), http.Header{})
	}
	if path == "service/register" {
		return a.registerOwn(req, r)
	}
	if path == "services" {
		return a.ok(req, a.ownServices())
	}
	if path == "checks" {
		out := map[string]Check{}
		for key := range a.checks {
			if key.node == AgentNode {
				out[key.id] = a.check(key)
			}
		}
		return a.ok(req, out)
	}
	if key, ok := id("service/deregister/"); ok {
		a.deregister(key.node, key.id)
		a.deregister(key.node, key.id+sidecarSuffix)
		return a.ok(req, nil)
	}
	if key, ok := id("service/maintenance/"); ok {
		return a.maintain(req, key, r.Query.Get("enable") == "true")
	}
	if key, ok := id("check/update/"); ok {
		c, there := a.checks[key]
		if !there {
			return missing("check ID " + key.id)
		}
		if err := json.Unmarshal(r.Body, &c); err != nil {
			return respond(req, http.StatusBadRequest, []byte(err.Error()), http.Header{})
		}
		c.Fed = time.Now()
		a.setCheck(c)
		return a.ok(req, nil)
	}
	key, ok := id("service/")
	s, there := a.services[key]
	if !ok || !there {
		return missing("service ID: " + key.id)
	}
	return a.ok(req, s.agent())
}

// ownServices are the agent's own, by ID.
func (a *Agent) ownServices() map[string]agentService {
	out := map[string]agentService{}
	for id := range a.byNode[AgentNode] {
		out[id.id] = a.services[id].agent()
	}
	return out
}

// maintain sets or removes the check of a service's maintenance.
func (a *Agent) maintain(req *http.Request, of serviceID, on bool) *http.Response {
	check := serviceID{of.node, "_service_maintenance:" + of.id}
	if a.dropCheck(check); on {
		a.setCheck(Check{Node: of.node, CheckID: check.id, Status: "critical", ServiceID: of.id, ServiceName: a.services[of].ServiceName})
	}
	return a.ok(req, nil)
}

// registerOwn registers a service of the agent's own, with one check and perhaps
// its sidecar, which has its service's port.
func (a *Agent) registerOwn(req *http.Request, r Request) *http.Response {
	var d struct {
		agentService
		Name  string
		Check struct{ CheckID, Name, Notes, TTL, Status string }

		Connect *struct {
			SidecarService *struct {
				Checks []struct{ Name, Notes string }
			}
		}
	}
	if err := json.Unmarshal(r.Body, &d); err != nil {
		return respond(req, http.StatusBadRequest, []byte("Request decode failed: "+err.Error()), http.Header{})
	}
	ttl, err := time.ParseDuration(d.Check.TTL)
	if err != nil || ttl <= 0 {
		return respond(req, http.StatusBadRequest, []byte("Invalid check: Interval must be > 0 for TTL check"), http.Header{})
	}
	d.Service = d.Name
	s := d.on(AgentNode, "127.0.0.1")
	a.register(s)
	if r.Query.Has("replace-existing-checks") {
		a.dropChecks(serviceID{AgentNode, d.ID})
	}
	a.setCheck(Check{
		Node: AgentNode, CheckID: d.Check.CheckID, Name: d.Check.Name, Notes: d.Check.Notes, Status: d.Check.Status,
		ServiceID: d.ID, ServiceName: d.Name, TTL: ttl, Fed: time.Now(),
	})
	if d.Connect != nil && d.Connect.SidecarService != nil {
		s.ServiceID, s.ServiceName = d.ID+sidecarSuffix, d.Name+sidecarSuffix
		a.register(s)
		a.dropChecks(serviceID{AgentNode, s.ServiceID})
		for i, c := range d.Connect.SidecarService.Checks {
			a.setCheck(Check{
				Node: AgentNode, CheckID: fmt.Sprintf("service:%s:%d", s.ServiceID, i+1), Name: c.Name, Notes: c.Notes, Status: "passing",
				ServiceID: s.ServiceID, ServiceName: s.ServiceName,
			})
		}
	}
	return a.ok(req, nil)
}
