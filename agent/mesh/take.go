package mesh

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// taken takes down whether this agent has a lock that it has tried to take since then.
func (k *locks) taken(cluster string, got bool, since topology.Mono) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.all[cluster]
	l.denied, l.deniedAt = nil, 0
	if l.barred <= since {
		l.turns = 0
	}
	if got && l.turns == 0 {
		k.log.Info("this agent publishes the cluster from now on", "cluster", cluster, "key", l.key)
	}
	if l.set(got); got {
		l.owned(holding{k.session, k.o.Name}, k.o.Now().Mono)
	}
}

// deny takes down, by cluster, why the token may not take a lock. That is tried again
// after locksEvery, behind the locks that it may take.
func (k *locks) deny(why map[string]error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var fresh []string
	for cluster, err := range why {
		l := k.all[cluster]
		if l.denied == nil {
			fresh = append(fresh, cluster)
		}
		l.denied, l.deniedAt = err, k.o.Now().Mono
		l.set(false)
	}
	if len(fresh) > 0 {
		slices.Sort(fresh)
		k.log.Warn("this agent may not take locks and leaves their clusters to others; trying again every second",
			"clusters", len(fresh), "first", fresh[0], "err", cause(why[fresh[0]]))
	}
}

// takeMany takes locks in transactions. What is beyond this second's is due in the next.
func (k *locks) takeMany(ctx context.Context, clusters []string) error {
	var first error
	for part := range slices.Chunk(clusters, consul.MaxOps) {
		for refused := true; refused; { // those that others have, and then without them
			if len(part) == 0 || !k.takes.Allow() {
				break
			}
			k.requests.Reserve() // before those who wait: they wait for locks
			rest, why, err := k.takeAtOnce(ctx, part)
			if err != nil {
				return err
			}
			first = cmp.Or(first, why)
			refused, part = len(rest) < len(part), rest
		}
	}
	return first
}

// takeAtOnce takes all of the locks, or none and returns those that may be taken without
// the others. Why is what Consul has against one of these, when it is neither that another
// agent has it nor a right that the token lacks, which are taken down.
func (k *locks) takeAtOnce(ctx context.Context, clusters []string) (free []string, why, err error) {
	k.mu.Lock()
	session, now := k.session, k.o.Now().Mono
	ops := make(api.TxnOps, 0, len(clusters))
	for _, cluster := range clusters {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVLock, Key: k.all[cluster].key, Value: []byte(k.o.Name), Session: session}})
	}
	k.mu.Unlock()
	errs, err := k.o.Client.Commit(ctx, ops)
	if err != nil && len(errs) == 0 {
		return nil, nil, failure(k.o, "take the locks of many clusters, the first of them "+ops[0].KV.Key, err)
	}
	refused, denied := make(map[int]bool, len(errs)), make(map[string]error)
	for _, e := range errs {
		refused[e.OpIndex] = true
		doing := "take the lock " + ops[e.OpIndex].KV.Key
		switch {
		case isDeniedError(e):
			denied[clusters[e.OpIndex]] = failure(k.o, doing, api.StatusError{Code: http.StatusForbidden, Body: e.What})
		case why == nil && !isHeldError(e):
			why = failed(doing + ": " + watchers.Clip(e.What))
		}
	}
	k.deny(denied)
	for i, cluster := range clusters {
		switch {
		case denied[cluster] != nil:
		case refused[i]:
			k.taken(cluster, false, now)
		case len(errs) == 0:
			k.taken(cluster, true, now)
		default:
			free = append(free, cluster)
		}
	}
	if len(errs) == 0 {
		return clusters, nil, nil
	}
	return free, why, nil
}
