package consulinit

import (
	"fmt"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/mesh"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// KindQuery is the kind of prepared queries, which are no config entries.
const KindQuery = "prepared-query"

// Config entries made here have this in their meta.
const (
	markKey   = "created-by"
	markValue = "pgsteer consul-init"
)

// The names that clients of the mesh use, since an upstream can only name a service.
const (
	suffixWrite = "-rw"
	suffixRead  = "-ro"
)

// Document is a config entry or a prepared query.
type Document struct {
	Kind, Name string

	entry api.ConfigEntry              // nil for a query
	query *api.PreparedQueryDefinition // nil for an entry
}

// ID tells documents apart, such as service-resolver/main.
func (d Document) ID() string { return d.Kind + "/" + d.Name }

// Options are for Documents.
type Options struct {
	// Gateway is the name of a terminating gateway that shall reach every
	// published service; empty: its entry is not made. For external publishing alone.
	Gateway string
}

// Documents are all of a configuration's published clusters, in an order in which
// Consul takes them. It fails when two would have one name, when a name is too long
// for DNS, and when nothing is published.
func Documents(cfg *config.Config, o Options) ([]Document, error) {
	clusters := cfg.Published()
	if len(clusters) == 0 {
		return nil, fmt.Errorf("no cluster is published (mesh.mode is %q), so Consul needs nothing", cfg.Mesh.Mode)
	}
	m := maker{external: cfg.Mesh.Mode == config.MeshExternal, namespace: cfg.Consul.Namespace, partition: cfg.Consul.Partition}
	if o.Gateway != "" && !m.external {
		return nil, fmt.Errorf("a terminating gateway serves what has no sidecar, which is `mode: external` of `mesh`")
	}
	of := make(map[string]string) // the cluster of a name
	for _, cl := range clusters {
		service := cl.MeshService()
		for _, name := range []string{service, service + suffixWrite, service + suffixRead} {
			if other, taken := of[name]; taken {
				return nil, fmt.Errorf("clusters %s and %s would both have the name %s in Consul; set mesh.service of one", other, cl.Name, name)
			}
			if err := topology.CheckLabel(name); err != nil {
				return nil, fmt.Errorf("cluster %s: the name %w; set its mesh.service", cl.Name, err)
			}
			of[name] = cl.Name
		}
		m.cluster(service, falls(cl) && !m.external)
	}
	if o.Gateway != "" {
		m.gateway(o.Gateway, clusters)
	}
	return m.out, nil
}

// falls reports whether the published read pool falls back to the primary.
func falls(cl config.Cluster) bool {
	i := slices.IndexFunc(cl.Pools, func(p config.Pool) bool {
		return p.Mode == topology.ModeRead && (cl.Mesh.ReadPool == "" || cl.Mesh.ReadPool == p.Name)
	})
	return i >= 0 && cl.Pools[i].Fallback == topology.FallbackPrimary
}

// maker collects documents.
type maker struct {
	external             bool
	namespace, partition string
	out                  []Document
}

func (m *maker) add(e api.ConfigEntry) {
	m.out = append(m.out, Document{Kind: e.GetKind(), Name: e.GetName(), entry: e})
}

func mark() map[string]string { return map[string]string{markKey: markValue} }

// cluster has the order of Consul's checks: protocols, then the subsets, then those
// who redirect to them.
func (m *maker) cluster(service string, fallback bool) {
	for _, name := range []string{service, service + suffixWrite, service + suffixRead} {
		m.add(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: name, Namespace: m.namespace, Partition: m.partition, Protocol: "tcp", Meta: mark()})
	}
	resolver := m.resolver(service)
	// Whoever names the service itself must not be balanced over all roles.
	resolver.DefaultSubset = mesh.RolePrimary
	resolver.Subsets = m.subsets()
	if fallback {
		resolver.Failover = map[string]api.ServiceResolverFailover{mesh.RoleReplica: {Service: service, ServiceSubset: mesh.RolePrimary}}
	}
	m.add(resolver)
	for _, v := range []struct{ suffix, role string }{{suffixWrite, mesh.RolePrimary}, {suffixRead, mesh.RoleReplica}} {
		r := m.resolver(service + v.suffix)
		r.Redirect = &api.ServiceResolverRedirect{Service: service, ServiceSubset: v.role}
		m.add(r)
		m.query(service+v.suffix, service, v.role)
	}
}

func (m *maker) resolver(name string) *api.ServiceResolverConfigEntry {
	return &api.ServiceResolverConfigEntry{Kind: api.ServiceResolver, Name: name, Namespace: m.namespace, Partition: m.partition, Meta: mark()}
}

// subsets have no OnlyPassing: what is not to be used is critical, and a warning is a
// replica that serves although it is behind, which the pool decided.
func (m *maker) subsets() map[string]api.ServiceResolverSubset {
	out := make(map[string]api.ServiceResolverSubset)
	for _, role := range []string{mesh.RolePrimary, mesh.RoleReplica, mesh.RoleStandbyLeader} {
		out[role] = m.subset("role", role)
	}
	for _, part := range []topology.Role{topology.RoleSync, topology.RoleQuorum, topology.RoleAsync} {
		out[string(part)] = m.subset("sync", string(part))
	}
	return out
}

// subset: a client's sidecar connects to the terminating gateway, which chooses the
// instance by the same filter. Consul 1.14 spares the gateway itself from it; with one
// that does not (hashicorp/consul issue 20734) the filter must let it pass.
func (m *maker) subset(key, value string) api.ServiceResolverSubset {
	filter := fmt.Sprintf("Service.Meta.%s == %q", key, value)
	if m.external {
		filter += fmt.Sprintf(" or Service.Kind == %q", api.ServiceKindTerminatingGateway)
	}
	return api.ServiceResolverSubset{Filter: filter}
}

// query names its TTL, or it would be the one that the agent has for all services.
func (m *maker) query(name, service, role string) {
	m.out = append(m.out, Document{Kind: KindQuery, Name: name, query: &api.PreparedQueryDefinition{
		Name: name,
		Service: api.ServiceQuery{
			Service: service, Tags: []string{role}, Near: "_agent", Namespace: m.namespace, Partition: m.partition,
		},
		DNS: api.QueryDNSOptions{TTL: "0s"},
	}})
}

func (m *maker) gateway(name string, clusters []config.Cluster) {
	e := &api.TerminatingGatewayConfigEntry{Kind: api.TerminatingGateway, Name: name, Namespace: m.namespace, Partition: m.partition, Meta: mark()}
	for _, cl := range clusters {
		e.Services = append(e.Services, api.LinkedService{Name: cl.MeshService(), Namespace: m.namespace})
	}
	m.add(e)
}
