package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// This file is about what nobody looks after any more: instances of the other mode,
// and of a node that was this host's before a change of the configuration.

// tidyEvery is how often it is looked for what the other mode has left.
const tidyEvery = goneFor / 3

// tidy has what the other mode has left removed, while it is known what is to stand.
// What it failed to ask is asked again after tidyEvery; other requests tell the trouble.
func (s *station) tidy(ctx context.Context, why string, now topology.Mono) {
	if why != "" || s.tidiedAt != 0 && now.Sub(s.tidiedAt) < tidyEvery {
		return
	}
	s.tidiedAt = now
	err := s.within(ctx, "look for what another mode has left", func(ctx context.Context) (err error) {
		s.left, err = s.store.tidy(ctx, now)
		return err
	})
	if ctx.Err() == nil {
		s.untidy = tellUntidy(s.log, s.untidy, err)
	}
}

// tellUntidy logs when it begins to fail to look for what the other mode has left, and
// when that ends; failed is whether it failed before.
func tellUntidy(log *slog.Logger, failed bool, err error) (fails bool) {
	switch {
	case err != nil && !failed:
		log.Warn("it cannot be looked for what another mode of mesh may have left; that is tried again", "every", tidyEvery, "err", cause(err))
	case err == nil && failed:
		log.Info("it is looked again for what another mode of mesh may have left")
	}
	return err != nil
}

// leftovers are instances of the other mode, and since when they have been seen.
type leftovers struct {
	since map[string]topology.Mono
	at    topology.Mono // the last look
}

// due takes down which are seen now, and returns those that have been seen for long
// enough to be nobody's: during a change of the mode both modes run for a while. Time in
// which Consul could not be asked does not count.
func (l *leftovers) due(seen []string, now topology.Mono) (ids []string) {
	if l.since == nil || now.Sub(l.at) > 2*tidyEvery {
		l.since = make(map[string]topology.Mono)
	}
	l.at = now
	maps.DeleteFunc(l.since, func(id string, _ topology.Mono) bool { return !slices.Contains(seen, id) })
	for _, id := range seen {
		if l.since[id] == 0 {
			l.since[id] = now
		} else if now.Sub(l.since[id]) >= goneFor {
			ids = append(ids, id)
		}
	}
	return ids
}

// told words leftovers, of which there are some; by says how they are removed by hand, and failed why this
// agent could not do it.
func told(seen []string, where, by string, failed error) error {
	if failed != nil {
		return fmt.Errorf("%s stands at %s, left by the other mode of mesh, and cannot be removed: %w; do it by hand: %s", seen[0], where, failed, by)
	}
	return fmt.Errorf("%s stands at %s, left by the other mode of mesh or by a pgsteer that still has it; it is removed after %s", seen[0], where, goneFor)
}

// agentServices are pgsteer's instances at the Consul agent that is asked, read once
// for all clusters: who comes first when that is due asks, and all others have what was
// read before, so that none waits and a failure is no reason for each of them to ask, or
// to tell it.
type agentServices struct {
	o *Options

	mu     sync.Mutex // guards everything below
	readAt topology.Mono
	all    map[string]*api.AgentService
	fails  bool // the last question
}

// read returns them; not known: they could not be read, which is told in the log.
func (a *agentServices) read(ctx context.Context, now topology.Mono) (all map[string]*api.AgentService, known bool) {
	all, known, fresh := a.last(now)
	if fresh {
		return all, known
	}
	all, err := registeredAt(ctx, a.o.Client, `ID matches "^pgsteer:"`)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, false
	}
	if err != nil {
		err = failure(a.o, "look for what another mode has left", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all, a.fails = all, tellUntidy(a.o.Logger, a.fails, err)
	return all, err == nil
}

// last is what was read last; not fresh: the caller is to read.
func (a *agentServices) last(now topology.Mono) (all map[string]*api.AgentService, known, fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.readAt != 0 && now.Sub(a.readAt) < tidyEvery {
		return a.all, !a.fails, true
	}
	a.readAt = now
	return nil, false, false
}

// registeredAt are the services of the Consul agent that is asked, by ID. What its
// ACLs hide is left out without a word.
func registeredAt(ctx context.Context, c *consul.Client, filter string) (map[string]*api.AgentService, error) {
	q, err := c.Options(ctx, consul.Default)
	if err != nil {
		return nil, err
	}
	return c.API().Agent().ServicesWithFilterOpts(filter, q)
}

// claims reports whether an instance is one of a cluster's: by its ID, or because it
// has the cluster's service and an ID of pgsteer's, of a cluster that was renamed.
func claims(cluster, service string, s *api.AgentService) bool {
	return s.Kind == api.ServiceKindTypical && (ours(cluster, s.ID) || s.Service == service && pgsteers(s.ID))
}

// tidy removes what mode local has registered at this host's Consul agent.
func (e *external) tidy(ctx context.Context, now topology.Mono) (warning, err error) {
	all, known := e.agent.read(ctx, now)
	if !known {
		return nil, nil
	}
	var seen []string
	for id, s := range all {
		if claims(e.cluster, e.service, s) {
			seen = append(seen, id)
		}
	}
	slices.Sort(seen)
	var failed error
	for _, id := range e.left.due(seen, now) {
		err := e.requests.Wait(ctx)
		if err == nil {
			err = deregister(ctx, e.o.Client, id)
		}
		failed = cmp.Or(failed, err)
	}
	if len(seen) == 0 {
		return nil, nil
	}
	return told(seen, "the Consul agent", "consul services deregister -id="+seen[0], failed), nil
}

// deregister takes an instance from the Consul agent that is asked.
func deregister(ctx context.Context, c *consul.Client, id string) error {
	q, err := c.Options(ctx, consul.Default)
	if err != nil {
		return err
	}
	if err := c.API().Agent().ServiceDeregisterOpts(id, q); err != nil && !isMissing(err) {
		return fmt.Errorf("deregister %s: %w", id, err)
	}
	return nil
}

// externalNode is the name of the external node of a service.
func externalNode(service string) string { return "pgsteer-" + service }

// nodeMeta is what tells the external node from one of somebody else's, with its
// address. Consul's own programs know these keys.
func nodeMeta() map[string]string {
	return map[string]string{"external-node": "true", "external-probe": "false"}
}

// isExternalNode reports whether a node is one that this package has written.
func isExternalNode(n *api.Node) bool {
	return n.Address == nodeAddress && n.Meta["external-node"] == "true"
}

// readNode returns a node with its services, nil when there is none; hidden says that
// ACLs may hide it.
func readNode(ctx context.Context, c *consul.Client, name string, mode consul.Consistency) (found *api.CatalogNodeServiceList, hidden bool, err error) {
	q, err := c.Options(ctx, mode)
	if err != nil {
		return nil, false, err
	}
	list, meta, err := c.API().Catalog().NodeServiceList(name, q)
	switch {
	case isMissing(err):
		return nil, false, nil
	case isDenied(err):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case list == nil || list.Node == nil:
		return nil, meta.ResultsFilteredByACLs, nil
	}
	return list, false, nil
}

// tidy removes what mode external has left in the catalog. To deregister a service
// there needs the right to write that service alone (Consul, vetDeregisterWithACL).
func (l *local) tidy(ctx context.Context, now topology.Mono) (warning, err error) {
	if err := l.requests.Wait(ctx); err != nil {
		return nil, err
	}
	node := externalNode(l.s.Service)
	found, hidden, err := readNode(ctx, l.o.Client, node, consul.Stale)
	if err != nil {
		return nil, err
	}
	if hidden {
		return fmt.Errorf("ACLs hide whether mode external has left instances: the token needs node %q { policy = \"read\" }", node), nil
	}
	var seen []string
	if found != nil && isExternalNode(found.Node) {
		for _, s := range found.Services {
			if pgsteers(s.ID) {
				seen = append(seen, s.ID)
			}
		}
	}
	slices.Sort(seen)
	var failed error
	for _, id := range l.left.due(seen, now) {
		w, err := l.o.Client.WriteOptions(ctx)
		if err == nil {
			_, err = l.o.Client.API().Catalog().Deregister(&api.CatalogDeregistration{Node: node, ServiceID: id}, w)
		}
		failed = cmp.Or(failed, err)
	}
	if len(seen) == 0 {
		return nil, nil
	}
	return told(seen, "the node "+node, fmt.Sprintf(`curl -X PUT -d '{"Node":%q}' CONSUL/v1/catalog/deregister`, node), failed), nil
}

// strays finds the instances at this Consul agent that are the cluster's and neither
// this host's node nor another publisher's. Of several publishers that share a Consul
// agent each has a node of the cluster, and says what is decided of it. stands says that
// this host's node is registered.
func (l *local) strays(ctx context.Context, stands bool) (strays map[string]Registration, foreign []string, err error) {
	all, err := registeredAt(ctx, l.o.Client, fmt.Sprintf(`Service == %q or ID matches "^pgsteer:"`, l.s.Service))
	if err != nil {
		return nil, nil, err
	}
	strays = make(map[string]Registration)
	for id, s := range all {
		switch {
		case id == l.id():
		case s.Service == l.s.Service && s.Kind == api.ServiceKindTypical && !pgsteers(id):
			foreign = append(foreign, id+" at this Consul agent")
		case claims(l.cluster, l.s.Service, s):
			r := registered(s, nil)
			r.Sidecar = all[id+sidecarSuffix] != nil
			strays[id] = r
		}
	}
	if err := l.checks(ctx, strays); err != nil {
		return nil, nil, err
	}
	now := l.o.Now().Mono
	if now.Sub(l.readAt) > goneFor/3 { // nobody could take anything back meanwhile
		clear(l.contrary)
	}
	l.readAt = now
	maps.DeleteFunc(strays, func(_ string, r Registration) bool { return !l.isStray(r, stands) })
	maps.DeleteFunc(l.contrary, func(id string, _ topology.Mono) bool { return all[id] == nil })
	maps.DeleteFunc(l.ended, func(id string, _ bool) bool { return all[id] == nil })
	return strays, foreign, nil
}

// checks reads what the checks of instances say.
func (l *local) checks(ctx context.Context, of map[string]Registration) error {
	if len(of) == 0 {
		return nil
	}
	q, err := l.o.Client.Options(ctx, consul.Default)
	if err != nil {
		return err
	}
	checks, err := l.o.Client.API().Agent().ChecksWithFilterOpts(`CheckID matches "^pgsteer:"`, q)
	if err != nil {
		return err
	}
	for id, r := range of {
		if c := checks[id]; c != nil {
			r.Check = Check{Status: c.Status, Output: c.Output, Notes: c.Notes}
			of[id] = r
		}
	}
	return nil
}

// isStray: its cluster was renamed, its node is none of the cluster any more or was this
// host's before, or for as long as a dead publisher's word counts it has been primary
// against what is decided.
func (l *local) isStray(r Registration, stands bool) bool {
	node, same := strings.CutPrefix(r.ID, idPrefix(l.cluster))
	if !same {
		return true
	}
	now := l.o.Now().Mono
	v := l.o.Views.Get(l.cluster)
	if v == nil || v.Snapshot == nil || !v.Valid(now) || !v.Snapshot.Complete || len(v.Snapshot.Nodes) == 0 {
		return isDeparted(r)
	}
	want := Desired(v, l.s)
	i := slices.IndexFunc(want, func(in Instance) bool { return in.Node == node })
	switch {
	case i < 0 || isDeparted(r), stands && l.isFormer(r):
		return true
	case !isPrimary(r) || want[i].Role == RolePrimary || want[i].KeepPrimary:
		delete(l.contrary, r.ID)
		return false
	case l.contrary[r.ID] == 0:
		l.contrary[r.ID] = now
	}
	return now.Sub(l.contrary[r.ID]) >= goneFor
}

// isFormer reports whether this publisher registered an instance, for the node that was
// this host's before. One that is written again after it was ended has somebody else who
// looks after it, whatever its mark says: a copy of this host, perhaps.
func (l *local) isFormer(r Registration) bool {
	return l.s.publisher != "" && r.Meta[metaPublisher] == l.s.publisher && !l.ended[r.ID]
}

// isDeparted reports whether an instance was written as one without a node.
func isDeparted(r Registration) bool {
	return r.Check.Status == Critical && r.Check.Output == departedOutput
}

// doubled is the fault of a service that others register too.
func doubled(service string, foreign []string) error {
	if len(foreign) == 0 {
		return nil
	}
	slices.Sort(foreign)
	if i := slices.IndexFunc(foreign, pgsteers); i >= 0 {
		id, _, _ := strings.Cut(foreign[i], " ")
		return fmt.Errorf("service %s has instances that pgsteer in mode local has registered, and DNS answers with all of them: %s; let every pgsteer have the same mode, or on the host: consul services deregister -id=%s",
			service, strings.Join(foreign[i:min(i+3, len(foreign))], ", "), id)
	}
	return fmt.Errorf("service %s has instances of others too, and DNS answers with all of them: %s; end their registration (Patroni's is register_service), or choose another mesh.service for this cluster",
		service, strings.Join(foreign[:min(3, len(foreign))], ", "))
}

// both joins two warnings to one text.
func both(a, b error) error {
	if a == nil || b == nil {
		return errors.Join(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}
