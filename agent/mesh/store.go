package mesh

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// store is where the instances of one cluster stand.
type store interface {
	// read returns the instances that this store looks after. The warning tells what
	// else answers under the service's name.
	read(ctx context.Context) (standing map[string]Registration, warning, err error)
	// write makes a change; errLost when it may not. costs are the requests of that.
	write(ctx context.Context, c change) error
	costs(c change) int
	// feed confirms the checks of what stands, for those who wait for that.
	feed(ctx context.Context, standing map[string]Registration) error
	// tidy removes what the other mode has left, once it has been seen for goneFor. The
	// warning tells what there is. It counts its requests itself: most have none.
	tidy(ctx context.Context, now topology.Mono) (warning, err error)
	// every is how often it is read, feeds how often it is fed; zero: never.
	every() time.Duration
	feeds() time.Duration
	// patience is how long after a failure it is tried again at the latest.
	patience() time.Duration
}

// external is an external node in the catalog, which no Consul agent looks after.
type external struct {
	o       *Options
	cluster string
	service string
	locks   *locks
	period  time.Duration
	agent   *agentServices

	requests *rate.Limiter // of all clusters

	node bool // the node stands, and is this package's
	left leftovers
}

// nodeAddress is where nobody is (RFC 5737): an external node needs an address, and
// every instance has its own.
const nodeAddress = "192.0.2.1"

func (e *external) nodeName() string { return externalNode(e.service) }

func (e *external) every() time.Duration                                { return e.period }
func (e *external) feeds() time.Duration                                { return 0 }
func (e *external) patience() time.Duration                             { return retryMost }
func (e *external) feed(context.Context, map[string]Registration) error { return nil }

// read: every instance of pgsteer's on the external node is this publisher's, since
// the lock is that of the service; one of another cluster is of before it was renamed.
func (e *external) read(ctx context.Context) (map[string]Registration, error, error) {
	entries, err := e.o.Client.Instances(ctx, e.service)
	if err != nil {
		return nil, nil, err
	}
	standing := make(map[string]Registration)
	var foreign []string
	e.node = false
	for _, entry := range entries {
		if entry.Node.Node == e.nodeName() && isExternalNode(entry.Node) && pgsteers(entry.Service.ID) {
			e.node = true
			standing[entry.Service.ID] = registered(entry.Service, entry.Checks)
		} else {
			foreign = append(foreign, entry.Service.ID+" on "+entry.Node.Node)
		}
	}
	return standing, doubled(e.service, foreign), nil
}

// registered reads an instance as Consul has it.
func registered(s *api.AgentService, checks api.HealthChecks) Registration {
	r := Registration{
		ID: s.ID, Service: s.Service, Address: s.Address, Port: s.Port, Tags: s.Tags, Meta: s.Meta,
		Passing: s.Weights.Passing, Warning: s.Weights.Warning, EnableTagOverride: s.EnableTagOverride,
	}
	for _, c := range checks {
		if c.CheckID == s.ID {
			r.Check = Check{Status: c.Status, Output: c.Output, Notes: c.Notes}
		}
	}
	return r
}

// opsAtOnce are as many operations of a cluster as fit beside those on the lock and
// the node. It is even: an instance without its check would count as healthy.
const opsAtOnce = consul.MaxOps - 2

// write writes all in one transaction; more than fit in one, which takes more than
// sixty nodes, in several, of which that with the primary is the last.
func (e *external) write(ctx context.Context, c change) error {
	var ops api.TxnOps
	for _, r := range c.set {
		ops = append(ops, e.set(r)...)
	}
	for _, id := range c.drop {
		ops = append(ops, &api.TxnOp{Service: &api.ServiceTxnOp{Verb: api.ServiceDelete, Node: e.nodeName(), Service: api.AgentService{ID: id, Service: e.service}}})
	}
	for part := range slices.Chunk(ops, opsAtOnce) {
		if err := e.commit(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// costs: that the node may be made is asked first.
func (e *external) costs(c change) int {
	n := (2*len(c.set) + len(c.drop) + opsAtOnce - 1) / opsAtOnce
	if !e.node {
		n++
	}
	return n
}

func (e *external) commit(ctx context.Context, part api.TxnOps) error {
	session, _ := e.locks.hold(e.cluster, true)
	if session == "" {
		return errLost
	}
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: e.o.KeyPrefix + e.service, Session: session}}}
	if !e.node {
		if err := e.mayMakeNode(ctx); err != nil {
			return err
		}
		ops = append(ops, &api.TxnOp{Node: &api.NodeTxnOp{Verb: api.NodeSet, Node: api.Node{
			Node: e.nodeName(), Address: nodeAddress, Meta: nodeMeta(),
		}}})
	}
	errs, err := e.o.Client.Commit(ctx, append(ops, part...))
	switch {
	case err != nil:
		return err
	case len(errs) == 0:
		e.node = true
		return nil
	case isLockError(errs[0]):
		e.locks.lost(e.cluster)
		return errLost
	}
	return refused(errs)
}

// mayMakeNode refuses when a node of that name is somebody else's, whose address and
// meta a write would replace.
func (e *external) mayMakeNode(ctx context.Context) error {
	found, _, err := readNode(ctx, e.o.Client, e.nodeName(), consul.Consistent)
	if err != nil || found == nil || isExternalNode(found.Node) {
		return err
	}
	return fmt.Errorf("node %s with address %s is not one of pgsteer's external nodes, so nothing is written; rename that node, or choose another mesh.service for this cluster", e.nodeName(), found.Node.Address)
}

// set are the operations that write an instance and its check.
func (e *external) set(r Registration) api.TxnOps {
	return api.TxnOps{
		{Service: &api.ServiceTxnOp{Verb: api.ServiceSet, Node: e.nodeName(), Service: api.AgentService{
			ID: r.ID, Service: r.Service, Address: r.Address, Port: r.Port, Tags: r.Tags, Meta: r.Meta,
			Weights: api.AgentWeights{Passing: r.Passing, Warning: r.Warning},
		}}},
		{Check: &api.CheckTxnOp{Verb: api.CheckSet, Check: api.HealthCheck{
			Node: e.nodeName(), CheckID: r.ID, Name: checkName, ServiceID: r.ID, ServiceName: r.Service,
			Status: r.Check.Status, Output: r.Check.Output, Notes: r.Check.Notes,
		}}},
	}
}

const checkName = "takes new sessions, by pgsteer"

// local is the Consul agent on this host, and one instance at it.
type local struct {
	o       *Options
	cluster string
	s       Settings

	requests *rate.Limiter // of all clusters

	token    string // with which the instance was registered last
	sidecar  string // where its sidecar listened last; empty: not known yet
	readAt   topology.Mono
	contrary map[string]topology.Mono // since when others' instances contradict what is decided
	ended    map[string]bool          // instances that were written as ones without a node
	left     leftovers
}

func (l *local) id() string           { return ID(l.cluster, l.s.Node) }
func (l *local) every() time.Duration { return l.o.ReadEvery }

// feeds thrice within the shorter TTL.
func (l *local) feeds() time.Duration { return min(l.s.TTL, l.s.PrimaryTTL, 30*time.Second) / 3 }

// patience is short: a Consul agent that comes back says critical for a check whose TTL ran
// out meanwhile, and to ask the one on this host in vain costs nothing.
func (l *local) patience() time.Duration { return retryMost / 4 }

func (l *local) read(ctx context.Context) (map[string]Registration, error, error) {
	own, err := l.own(ctx)
	if err != nil {
		return nil, nil, err
	}
	standing, foreign, err := l.strays(ctx, len(own) > 0)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(standing, own)
	return standing, doubled(l.s.Service, foreign), nil
}

// own reads the instance of the node on this host.
func (l *local) own(ctx context.Context) (map[string]Registration, error) {
	q, err := l.o.Client.Options(ctx, consul.Default)
	if err != nil {
		return nil, err
	}
	agent := l.o.Client.API().Agent()
	found, _, err := agent.Service(l.id(), q)
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	checks, err := agent.ChecksWithFilterOpts(fmt.Sprintf("CheckID == %q or ServiceID == %q", l.id(), l.id()+sidecarSuffix), q)
	if err != nil {
		return nil, err
	}
	r := registered(found, nil)
	// The agent tells the catalog of an instance with the token of its registration,
	// which must not be one that was rotated away.
	r.outdated = q.Token != l.token
	if c := checks[l.id()]; c != nil {
		r.Check = Check{Status: c.Status, Output: c.Output, Notes: c.Notes}
	}
	if l.s.Sidecar {
		sidecar, _, err := agent.Service(l.id()+sidecarSuffix, q)
		if err != nil && !isMissing(err) {
			return nil, err
		}
		if r.Sidecar = err == nil; r.Sidecar {
			l.sidecar = listens(sidecar)
			r.outdated = r.outdated || !isChecked(checks, l.sidecar)
		}
	}
	return map[string]Registration{r.ID: r}, nil
}

func (l *local) write(ctx context.Context, c change) error {
	q, err := l.o.Client.Options(ctx, consul.Default)
	if err != nil {
		return err
	}
	for _, id := range c.drop {
		if err := deregister(ctx, l.o.Client, id); err != nil {
			return err
		}
	}
	for _, r := range c.set {
		// Other checks stay: among them is what consul maint has set, an operator's word.
		opts := api.ServiceRegisterOpts{Token: q.Token}.WithContext(ctx)
		if err := l.o.Client.API().Agent().ServiceRegisterOpts(l.definition(r), opts); err != nil {
			return err
		}
		// What a check says is no part of its definition.
		if err := l.feed(ctx, map[string]Registration{r.ID: r}); err != nil {
			return err
		}
		l.token = q.Token
		if isDeparted(r) {
			l.ended[r.ID] = true
		}
	}
	return nil
}

// costs: a check is fed beside each registration.
func (l *local) costs(c change) int { return len(c.drop) + 2*len(c.set) }

// definition is the whole of an instance, so that a sidecar follows its tags and meta.
func (l *local) definition(r Registration) *api.AgentServiceRegistration {
	out := &api.AgentServiceRegistration{
		ID: r.ID, Name: r.Service, Address: r.Address, Port: r.Port, Tags: r.Tags, Meta: r.Meta,
		Weights: &api.AgentWeights{Passing: r.Passing, Warning: r.Warning},
		Check: &api.AgentServiceCheck{
			CheckID: r.ID, Name: checkName, Notes: r.Check.Notes, TTL: r.Check.TTL.String(), Status: r.Check.Status,
		},
	}
	if r.Sidecar {
		out.Connect = &api.AgentServiceConnect{SidecarService: &api.AgentServiceRegistration{}}
		if r.ID == l.id() {
			out.Connect.SidecarService.Checks = sidecarChecks(r.ID, l.sidecar)
		}
	}
	return out
}

func (l *local) feed(ctx context.Context, standing map[string]Registration) error {
	q, err := l.o.Client.Options(ctx, consul.Default)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(standing)) {
		c := standing[id].Check
		if c.Status == "" || id != l.id() && !isDeparted(standing[id]) {
			continue // it comes with the next registration, or is to be silent
		}
		if err := l.o.Client.API().Agent().UpdateTTLOpts(id, c.Output, c.Status, q); err != nil {
			return fmt.Errorf("feed check %s: %w", id, err)
		}
	}
	return nil
}
