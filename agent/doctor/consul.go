package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

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
