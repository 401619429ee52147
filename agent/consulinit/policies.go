package consulinit

import (
	"fmt"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// The jobs that pgsteer does at Consul, each of which can have a token of its own.
const (
	JobWatch       = "watch"       // read where the primary is, and which nodes there are
	JobMaintenance = "maintenance" // keep the records of what is out
	JobPublish     = "publish"     // what agent/mesh does
	JobInit        = "consul-init" // what this package does; an operator's, not the agent's
)

// Policy is what one job needs and nothing more.
type Policy struct {
	Job, Doc string
	Rights   []consul.Right
}

// Rules are the policy for consul acl policy create, in HCL.
func (p Policy) Rules() string {
	var out strings.Builder
	for _, r := range p.Rights {
		fmt.Fprintln(&out, r)
	}
	return out.String()
}

// Policies are those of the jobs that a configuration makes pgsteer do.
func Policies(cfg *config.Config) []Policy {
	all := []Policy{
		{JobWatch, "read Patroni's keys, and services that are a source of nodes", watchRights(cfg)},
		{JobMaintenance, "read and write the records of what is out", maintenanceRights(cfg)},
		{JobPublish, publishDoc(cfg), publishRights(cfg)},
		{JobInit, "for the operator who runs pgsteer consul-init --apply, not for the agent", initRights(cfg)},
	}
	var out []Policy
	for _, p := range all {
		if len(p.Rights) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func watchRights(cfg *config.Config) []consul.Right {
	var out []consul.Right
	nodes := false
	for _, cl := range cfg.Clusters {
		if cl.Authority == topology.AuthorityPatroni && cl.Patroni.Source == config.SourceConsul {
			out = append(out, consul.Right{Resource: "key_prefix", Name: cl.Patroni.KeyPrefix(), Access: consul.Read})
		}
		if s := cl.ConsulService.Name; s != "" {
			out = append(out, consul.Right{Resource: "service", Name: s, Access: consul.Read})
			nodes = true
		}
	}
	if nodes { // nobody knows on which they will be
		out = append(out, consul.Right{Resource: "node_prefix", Access: consul.Read})
	}
	return out
}

func maintenanceRights(cfg *config.Config) []consul.Right {
	if cfg.Maintenance.Store != config.StoreConsul {
		return nil
	}
	return []consul.Right{{Resource: "key", Name: cfg.Maintenance.Key, Access: consul.Write}}
}

// publishDoc names the narrower choice: which Consul agents are asked is not known here.
func publishDoc(cfg *config.Config) string {
	doc := "publish what is decided, mesh.mode " + string(cfg.Mesh.Mode)
	if cfg.Mesh.Mode == config.MeshExternal {
		doc += `; session_prefix "" lets the token end any session, and session "NODE" is enough for each NODE whose Consul agent a pgsteer asks`
	}
	return doc
}

func publishRights(cfg *config.Config) []consul.Right {
	clusters := cfg.Published()
	if len(clusters) == 0 {
		return nil
	}
	var out []consul.Right
	external := cfg.Mesh.Mode == config.MeshExternal
	if external {
		out = append(out,
			consul.Right{Resource: "key_prefix", Name: cfg.Mesh.Key + "/", Access: consul.Write},
			consul.Right{Resource: "session_prefix", Access: consul.Write})
	}
	for _, cl := range clusters {
		service := cl.MeshService()
		if external {
			out = append(out, consul.Right{Resource: "node", Name: "pgsteer-" + service, Access: consul.Write})
		}
		out = append(out, consul.Right{Resource: "service", Name: service, Access: consul.Write})
		if !external { // which mode external may have left
			out = append(out, consul.Right{Resource: "node", Name: "pgsteer-" + service, Access: consul.Read})
		}
		if !external && cfg.Mesh.Sidecar {
			out = append(out, consul.Right{Resource: "service", Name: service + "-sidecar-proxy", Access: consul.Write})
		}
	}
	if external { // others may have instances of that name, on any node
		out = append(out, consul.Right{Resource: "node_prefix", Access: consul.Read})
	}
	return out
}

func initRights(cfg *config.Config) []consul.Right {
	var out []consul.Right
	for _, cl := range cfg.Published() {
		service := cl.MeshService()
		for _, name := range []string{service, service + suffixWrite, service + suffixRead} {
			out = append(out, consul.Right{Resource: "service", Name: name, Access: consul.Write})
		}
		for _, name := range []string{service + suffixWrite, service + suffixRead} {
			out = append(out, consul.Right{Resource: "query", Name: name, Access: consul.Write})
		}
	}
	return out
}
