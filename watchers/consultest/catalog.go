package consultest

import (
	"encoding/json"
	"net/http"
)

// Service is one instance of a service in the catalog, as Consul's API writes it.
type Service struct {
	Node           string
	Address        string // of the node
	ServiceID      string
	ServiceName    string
	ServiceTags    []string
	ServiceAddress string // empty: the node's counts
	ServicePort    int
	ServiceMeta    map[string]string
	ServiceWeights Weights `json:",omitzero"`
	// ServiceEnableTagOverride lets others change the tags.
	ServiceEnableTagOverride bool `json:",omitzero"`

	CreateIndex, ModifyIndex uint64
}

// Node is a node of the catalog, as Consul's API writes it.
type Node struct {
	Node, Address string
	Meta          map[string]string
}

// RegisterNode puts a node without services into the catalog, or changes it.
func (a *Agent) RegisterNode(n Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes[n.Node] = n
}

// NodeOf returns a node that was registered as such.
func (a *Agent) NodeOf(name string) (Node, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, ok := a.nodes[name]
	return n, ok
}

// serviceID is what identifies an instance.
type serviceID struct{ node, id string }

// catalogIndexes are those of the catalog, which writes of keys do not move.
type catalogIndexes struct {
	last    uint64            // of the last write
	extinct uint64            // when the last instance of any service went
	of      map[string]uint64 // of the last write of a service
}

// Register puts instances into the catalog, or changes them. ServiceID is the
// name unless it is set.
func (a *Agent) Register(services ...Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range services {
		a.register(s)
	}
}

// Deregister takes an instance out of the catalog; an empty id means all of the node.
func (a *Agent) Deregister(node, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deregister(node, id)
}

// The functions below need a.mu.

func (a *Agent) register(s Service) {
	if s.ServiceID == "" {
		s.ServiceID = s.ServiceName
	}
	id := serviceID{s.Node, s.ServiceID}
	old, ok := a.services[id]
	s.CreateIndex, s.ModifyIndex = old.CreateIndex, old.ModifyIndex
	if ok && string(mustJSON(s)) == string(mustJSON(old)) {
		return
	}
	a.index++
	if s.ModifyIndex = a.index; !ok {
		s.CreateIndex = a.index
	}
	a.putService(id, s)
	a.catalog.last, a.catalog.of[s.ServiceName] = a.index, a.index
	a.broadcast()
}

func (a *Agent) deregister(node, id string) {
	a.index++
	if id == "" {
		delete(a.nodes, node)
	}
	for _, key := range a.byNode.of(node) {
		if id != "" && key.id != id {
			continue
		}
		name := a.services[key].ServiceName
		a.dropService(key)
		a.dropChecks(key)
		a.catalog.last, a.catalog.of[name] = a.index, a.index
		if len(a.byName[name]) == 0 {
			a.catalog.extinct = a.index
			delete(a.catalog.of, name)
		}
	}
	a.broadcast()
}

func (a *Agent) instances(name string) []Service {
	out := []Service{}
	for _, id := range a.byName.of(name) {
		out = append(out, a.services[id])
	}
	return out
}

// lookupService returns the instances of a service. Of one that has none, the
// index is that of the last service that vanished, else of the whole catalog.
func (a *Agent) lookupService(name string, f Fault) find {
	all := a.instances(name)
	index := a.catalog.of[name]
	if len(all) == 0 {
		index = max(a.catalog.extinct, 1)
		if a.catalog.extinct == 0 {
			index = max(a.catalog.last, 1)
		}
	}
	hidden := a.hides(name)
	if hidden || f.Empty {
		return find{body: []Service{}, index: index, filtered: hidden && len(all) > 0}
	}
	return find{body: all, index: index}
}

// nodeServices answers what is on a node, with null for one that nobody knows.
func (a *Agent) nodeServices(req *http.Request, name string) *http.Response {
	var out struct {
		Node     *Node
		Services []agentService
	}
	if n, ok := a.nodes[name]; ok {
		out.Node = &n
	}
	for _, id := range a.byNode.of(name) {
		s := a.services[id]
		out.Services = append(out.Services, s.agent())
		if out.Node == nil {
			out.Node = &Node{Node: name, Address: s.Address}
		}
	}
	return a.ok(req, out)
}

// catalogCommand serves the requests that register and deregister.
func (a *Agent) catalogCommand(req *http.Request, r Request) *http.Response {
	var c struct {
		Node, Address, ServiceID string
		Service                  *struct {
			ID, Service, Address string
			Tags                 []string
			Meta                 map[string]string
			Port                 int
		}
	}
	if err := json.Unmarshal(r.Body, &c); err != nil {
		return respond(req, http.StatusBadRequest, []byte("Request decode failed: "+err.Error()), http.Header{})
	}
	switch s := c.Service; {
	case r.Path == "/catalog/deregister":
		a.deregister(c.Node, c.ServiceID)
	case s != nil:
		a.register(Service{
			Node: c.Node, Address: c.Address, ServiceID: s.ID, ServiceName: s.Service, ServiceTags: s.Tags,
			ServiceAddress: s.Address, ServicePort: s.Port, ServiceMeta: s.Meta,
		})
	}
	return a.ok(req, true)
}
