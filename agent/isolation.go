package agent

import (
	"context"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// isolationEvery is how often all clusters are compared: well below the silence
// after which a node is drained.
const isolationEvery = 250 * time.Millisecond

// watchIsolation tells every cluster when all of them fell silent at once: then
// the trouble is on this side, and silence takes no writer out. It needs two
// clusters; a single one that is silent as a whole may well be dead.
func (a *Agent) watchIsolation(ctx context.Context) {
	tick := time.NewTicker(isolationEvery)
	defer tick.Stop()
	told, seq := topology.Unknown, uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := topology.Bool(a.isolated())
		if now == told || told == topology.Unknown && now == topology.No {
			continue
		}
		told = now
		seq++
		a.tellIsolation(ctx, now, seq)
	}
}

func (a *Agent) tellIsolation(ctx context.Context, isolated topology.Tri, seq uint64) {
	if isolated == topology.Yes {
		a.log.Error("every cluster is silent; the trouble is taken to be on this side, silence takes nobody out until one answers")
	} else {
		a.log.Info("a cluster answers again; silence counts again")
	}
	at := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, c := range a.clusters {
		c.report(ctx)(topology.Observation{
			Cluster: name, Source: topology.SourceID{Kind: topology.SourceLocal, Name: "isolation"}, Seq: seq,
			AskedAt: at, At: at, Local: &topology.Local{Isolated: isolated},
		})
	}
}

func (a *Agent) isolated() bool {
	names := a.views.Keys()
	if len(names) < 2 {
		return false
	}
	for _, name := range names {
		v := a.views.Get(name)
		if v == nil || v.Facts == nil || !allSilent(v.Facts) {
			return false
		}
	}
	return true
}

// allSilent: every node was heard before and now times out.
func allSilent(f *topology.Facts) bool {
	for _, n := range f.Nodes {
		if n.AnsweredAt == 0 || n.FailingAt == 0 || n.Failure == nil {
			return false
		}
		switch n.Failure.Class {
		case topology.FailTimeout, topology.FailUnreachable, topology.FailName, topology.FailLocal:
		default:
			return false
		}
	}
	return len(f.Nodes) > 0
}
