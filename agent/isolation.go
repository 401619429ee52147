package agent

import (
	"context"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// isolationEvery is how often all clusters are compared: well below the silence
// after which a node is drained.
const isolationEvery = 100 * time.Millisecond

// watchIsolation tells every cluster when all of them fell silent at once: then
// the trouble is on this side, and silence takes no writer out. It needs two
// clusters; a single one that is silent as a whole may well be dead.
func (a *Agent) watchIsolation(ctx context.Context) {
	tick := time.NewTicker(isolationEvery)
	defer tick.Stop()
	before, seq := false, uint64(0)
	told := make(map[*cluster]bool) // those that count on it; also those that began after it
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := a.isolated(before)
		switch {
		case now && !before:
			a.log.Error("every cluster is silent; the trouble is taken to be on this side, silence takes nobody out until one answers")
		case before && !now:
			a.log.Info("a cluster answers again; silence counts again")
		}
		before = now
		still := make(map[*cluster]bool)
		for _, c := range a.clustersNow() {
			if told[c] != now {
				seq++
				c.report(ctx)(a.isolation(c.name, now, seq))
			}
			still[c] = now
		}
		told = still
	}
}

func (a *Agent) isolation(cluster string, isolated bool, seq uint64) topology.Observation {
	at := a.now()
	return topology.Observation{
		Cluster: cluster, Source: topology.SourceID{Kind: topology.SourceLocal, Name: "isolation"}, Seq: seq,
		AskedAt: at, At: at, Local: &topology.Local{Isolated: topology.Bool(isolated)},
	}
}

func (a *Agent) clustersNow() []*cluster {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*cluster, 0, len(a.clusters))
	for _, c := range a.clusters {
		all = append(all, c)
	}
	return all
}

// isolated: at least two clusters were heard and are silent now, and nothing at
// all answers. A cluster that began during the silence was never heard, which
// neither begins nor ends it.
func (a *Agent) isolated(before bool) bool {
	names, heard := a.views.Keys(), 0
	for _, name := range names {
		v := a.views.Get(name)
		if v == nil || v.Facts == nil {
			continue
		}
		silent, known := silence(v.Facts)
		if !silent {
			return false
		}
		if known {
			heard++
		}
	}
	return len(names) >= 2 && (before || heard >= 2)
}

// silence reports whether no node of a cluster answers, and whether any did before.
func silence(f *topology.Facts) (silent, known bool) {
	for _, n := range f.Nodes {
		if n.AnsweredAt != 0 && n.FailingAt == 0 || n.Failure != nil && !isSilence(n.Failure.Class) {
			return false, true
		}
		known = known || n.AnsweredAt != 0
	}
	return true, known
}

func isSilence(c topology.FailureClass) bool {
	switch c {
	case topology.FailTimeout, topology.FailUnreachable, topology.FailName, topology.FailLocal:
		return true
	default:
		return false
	}
}
