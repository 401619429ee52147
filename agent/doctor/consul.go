package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/consulinit"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// maintenanceStore: whoever has Consul most likely has other agents too, which obey no
// file.
func maintenanceStore(_ context.Context, x *exam) []Result {
	c := x.Config
	if !c.UsesConsul() && c.Consul == config.Default().Consul {
		return nil
	}
	r := Result{Level: OK, Tried: "see where maintenance.store keeps what operators take out"}
	if c.Maintenance.Store == config.StoreConsul {
		r.Found = "in Consul's key " + c.Maintenance.Key + ", which all agents obey that have it"
		return []Result{r}
	}
	r.Level, r.Found = Warn, "in a file of this agent alone, although Consul is configured: other agents go on serving a node that is taken out here"
	r.Do = "set maintenance.store: consul, unless this is the only agent"
	return []Result{r}
}

func consulReads(ctx context.Context, x *exam) []Result {
	if x.Consul == nil {
		return nil
	}
	var all []Result
	for _, cl := range x.Config.Clusters {
		if cl.Authority != topology.AuthorityPatroni || cl.Patroni.Source != config.SourceConsul {
			continue
		}
		r := x.consulRead(ctx, cl)
		all = append(all, r)
		if r.Level == Fail {
			break // of one cluster or of all, the trouble is the same
		}
	}
	return all
}

func (x *exam) consulRead(ctx context.Context, cl config.Cluster) Result {
	prefix := cl.Patroni.KeyPrefix()
	r := Result{Subject: "cluster " + cl.Name, Level: OK, Tried: "list the keys below " + prefix + " at " + x.Config.Consul.Address}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := x.Consul(ctx, prefix)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		r.Level, r.Found, r.Do = Fail, fmt.Sprintf("no answer within %s", patience), "see that Consul's agent runs at consul.address and has a leader (consul operator raft list-peers)"
	case err != nil:
		r.Level, r.Found, r.Do = Fail, err.Error(), "see consul.address and consul.token_file; the token needs key_prefix \""+prefix+"\" { policy = \"read\" }"
	case answer.Filtered:
		r.Level, r.Found, r.Do = Fail, "the token hides some of the keys", "key_prefix \""+prefix+"\" { policy = \"read\" }"
	case answer.Keys == 0:
		r.Level, r.Found, r.Do = Warn, "there is no key", "compare patroni.namespace and patroni.scope with Patroni's own file; a token without the right to read sees none either"
	default:
		r.Found = fmt.Sprintf("%d keys", answer.Keys)
	}
	return r
}

// consulRights asks for every right of each job of the agent's own.
func consulRights(ctx context.Context, x *exam) []Result {
	if x.Lacking == nil {
		return nil
	}
	var all []Result
	for _, p := range consulinit.Policies(x.Config) {
		if p.Job == consulinit.JobInit {
			continue // it is an operator's
		}
		r := x.consulRight(ctx, p)
		all = append(all, r)
		if r.Level == Warn {
			break // what keeps Consul from telling is the same for all
		}
	}
	return all
}

func (x *exam) consulRight(ctx context.Context, p consulinit.Policy) Result {
	r := Result{Subject: p.Job, Level: OK, Tried: fmt.Sprintf("ask Consul at %s for %d rights of the token", x.Config.Consul.Address, len(p.Rights))}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lacking, err := x.Lacking(ctx, p.Rights)
	switch {
	case errors.Is(err, consul.ErrNoACLs):
		r.Found = "Consul asks nobody for rights"
	case err != nil:
		r.Level, r.Found, r.Do = Warn, err.Error(), "compare the token's policies with those of pgsteer doctor --acl"
	case len(lacking) > 0:
		var lines []string
		for _, l := range lacking {
			lines = append(lines, l.String())
		}
		r.Level, r.Found = Fail, fmt.Sprintf("the token lacks %d of %d rights", len(lacking), len(p.Rights))
		r.Do = "add to its policy: " + strings.Join(lines, " ")
	default:
		r.Found = fmt.Sprintf("the token has all %d", len(p.Rights))
	}
	return r
}
