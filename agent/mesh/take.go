package mesh

import (
	"cmp"
	"context"
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

// takeMany takes locks in transactions. What is beyond this second's is due in the next.
func (k *locks) takeMany(ctx context.Context, clusters []string) error {
	var denied error
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
			denied = cmp.Or(denied, why)
			refused, part = len(rest) < len(part), rest
		}
	}
	return denied
}

// takeAtOnce takes all of the locks, or none and returns those that nobody has; denied is
// why one of the others cannot be taken, when it is not another agent's.
func (k *locks) takeAtOnce(ctx context.Context, clusters []string) (free []string, denied, err error) {
	k.mu.Lock()
	session, now := k.session, k.o.Now().Mono
	ops := make(api.TxnOps, 0, len(clusters))
	for _, cluster := range clusters {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVLock, Key: k.all[cluster].key, Value: []byte(k.o.Name), Session: session}})
	}
	k.mu.Unlock()
	errs, err := k.o.Client.Commit(ctx, ops)
	if i := deniedKey(ops, err); i >= 0 {
		errs, denied = api.TxnErrors{{OpIndex: i}}, failure(k.o, "take the lock "+ops[i].KV.Key, err)
	} else if err != nil {
		return nil, nil, failure(k.o, "take the locks of many clusters, the first of them "+ops[0].KV.Key, err)
	}
	others := make(map[int]bool, len(errs))
	for _, e := range errs {
		others[e.OpIndex] = true
		if denied == nil && !isHeldError(e) {
			denied = failed("take the lock " + ops[e.OpIndex].KV.Key + ": " + watchers.Clip(e.What))
		}
	}
	for i, cluster := range clusters {
		switch {
		case others[i]:
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
	return free, denied, nil
}
