package consul

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// catalogRig runs a source over service pg of a fake agent.
type catalogRig struct {
	t      *testing.T
	agent  *consultest.Agent
	log    *logtest.Log
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	obs []topology.Observation
}

func newCatalogRig(t *testing.T, o CatalogOptions, a *consultest.Agent) *catalogRig {
	t.Helper()
	r := &catalogRig{t: t, agent: a, log: &logtest.Log{}, done: make(chan struct{})}
	var err error
	if o.Client == nil {
		if o.Client, err = NewClient(ClientOptions{Transport: a}); err != nil {
			t.Fatal(err)
		}
	}
	o.Cluster, o.Service, o.Now = "main", "pg", topology.NewTicker(time.Now)
	o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	c, err := NewCatalog(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		if err := c.Run(ctx, r.take); err != nil {
			t.Error(err)
		}
	}()
	return r
}

func (r *catalogRig) take(o topology.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.obs = append(r.obs, o)
	if o.Seq != uint64(len(r.obs)) || o.Cluster != "main" || o.Source != (topology.SourceID{Kind: SourceCatalog, Name: "pg"}) ||
		o.AskedAt.Mono == 0 || o.At.Mono < o.AskedAt.Mono || (o.Failure == nil) == (o.Nodes == nil) {
		r.t.Errorf("observation %d is %+v", len(r.obs), o)
	}
}

// words tells the observations in short, dropping repeats.
func (r *catalogRig) words() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, o := range r.obs {
		out = append(out, listed(o))
	}
	return compact(out)
}

// listed is an observation's failure, or its nodes with addresses and tags.
func listed(o topology.Observation) string {
	if o.Failure != nil {
		return "!" + string(o.Failure.Class)
	}
	var out []string
	for _, n := range o.Nodes.Nodes {
		text := n.Name + "=" + n.Address.String()
		for _, k := range slices.Sorted(maps.Keys(n.Tags)) {
			text += "," + k + ":" + n.Tags[k]
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return fmt.Sprintf("(empty, confirmed %v)", o.Nodes.ConfirmedEmpty)
	}
	return strings.Join(out, " ")
}

func (r *catalogRig) want(d time.Duration, words ...string) {
	r.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if diff := cmp.Diff(words, r.words()); diff != "" {
		r.t.Errorf("observed (-want +got):\n%s", diff)
	}
}

func (r *catalogRig) stop() {
	r.t.Helper()
	at := time.Now()
	r.cancel()
	<-r.done
	if took := time.Since(at); took != 0 {
		r.t.Errorf("Run returned %v after its context ended, want at once", took)
	}
}

func pgService(n int, tags ...string) consultest.Service {
	return consultest.Service{
		Node: fmt.Sprintf("db%d", n), Address: fmt.Sprintf("192.0.2.%d", n), ServiceName: "pg", ServicePort: 5432, ServiceTags: tags,
	}
}

// inCatalog starts a source in a bubble of fake time over nodes db1 and db2.
func inCatalog(t *testing.T, f func(r *catalogRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Register(pgService(1), pgService(2))
		r := newCatalogRig(t, CatalogOptions{}, a)
		defer r.stop()
		r.want(0, "db1=192.0.2.1:5432 db2=192.0.2.2:5432")
		f(r)
	})
}

const (
	twoNodes = "db1=192.0.2.1:5432 db2=192.0.2.2:5432"
	oneNode  = "db1=192.0.2.1:5432"
)

func TestCatalogFollowsInstances(t *testing.T) {
	inCatalog(t, func(r *catalogRig) {
		three := twoNodes + " db3=192.0.2.3:5432"
		r.want(time.Minute, twoNodes)
		r.agent.Register(pgService(3))
		r.want(0, twoNodes, three)
		r.agent.Register(pgService(3)) // the same again
		r.agent.Register(consultest.Service{Node: "x", Address: "192.0.2.99", ServiceName: "other"})
		r.agent.Put("some/key", "1")
		r.want(time.Minute, twoNodes, three)
		r.agent.Deregister("db3", "")
		r.want(time.Second, twoNodes, three, twoNodes)
		r.agent.Register(pgService(2, "zone=b"))
		r.want(time.Second, twoNodes, three, twoNodes, twoNodes+",zone:b")
	})
}

// The words for roles change with each switchover, and are no change.
func TestCatalogLeavesRolesOut(t *testing.T) {
	inCatalog(t, func(r *catalogRig) {
		r.agent.Register(pgService(1, "primary", "master"), pgService(2, "replica"))
		r.want(time.Minute, twoNodes)
		r.agent.Register(pgService(1, "replica"), pgService(2, "primary", "master"))
		r.want(time.Minute, twoNodes)
	})
}

func TestCatalogConfirmsEmptiness(t *testing.T) {
	inCatalog(t, func(r *catalogRig) {
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Empty: !q.Consistent, NoBlock: !q.Consistent, Index: 1000}
		})
		r.want(time.Minute, twoNodes)
		r.agent.Script(nil)
		r.agent.Deregister("db1", "pg")
		r.agent.Deregister("db2", "pg")
		r.want(time.Minute, twoNodes, "(empty, confirmed true)")
		r.agent.Register(pgService(1))
		r.want(time.Second, twoNodes, "(empty, confirmed true)", oneNode)
	})
}

// An answer with instances left out is a failure, not a shorter list.
func TestCatalogFilteredByACL(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault consultest.Fault
	}{
		{"all", consultest.Fault{Empty: true, Filtered: true}},
		{"some", consultest.Fault{Filtered: true}},
		{"all, without a token", consultest.Fault{Empty: true, DefaultDeny: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inCatalog(t, func(r *catalogRig) {
				r.agent.Script(func(consultest.Request) consultest.Fault { return c.fault })
				r.want(2*(defaultWait+defaultWait/16), twoNodes, "!denied") // the query under way is still good
				r.agent.Deregister("db2", "")
				r.want(time.Minute, twoNodes, "!denied")
				r.agent.Script(nil)
				r.want(31*time.Second, twoNodes, "!denied", oneNode)
			})
		})
	}
}

func TestCatalogThroughOutages(t *testing.T) {
	for _, c := range outages() {
		t.Run(c.name, func(t *testing.T) {
			inCatalog(t, func(r *catalogRig) {
				c.begin(r.agent)
				want := []string{twoNodes, "!" + string(c.class)}
				if c.name == "stopped" {
					want = slices.Insert(want, 1, "!reset") // the query under way
				}
				r.want(90*time.Second, want...)
				c.end(r.agent)
				r.want(31*time.Second, append(want, twoNodes)...)
			})
		})
	}
}

// An answer that may be old is not told; the sure one is.
func TestCatalogOldAnswer(t *testing.T) {
	inCatalog(t, func(r *catalogRig) {
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Empty: !q.Consistent, NoLeader: !q.Consistent, NoBlock: true}
		})
		r.agent.Register(pgService(3))
		r.want(time.Minute, twoNodes, twoNodes+" db3=192.0.2.3:5432")
	})
}

// Instances none of which can be a node are no empty list.
func TestCatalogWithoutAUsableInstance(t *testing.T) {
	inCatalog(t, func(r *catalogRig) {
		bad := pgService(1)
		bad.ServiceAddress = "0.0.0.0"
		r.agent.Register(bad)
		r.want(time.Second, twoNodes, "db2=192.0.2.2:5432")
		r.agent.Deregister("db2", "")
		r.want(time.Minute, twoNodes, "db2=192.0.2.2:5432", "!content")
		r.mu.Lock()
		text := r.obs[len(r.obs)-1].Failure.Text
		r.mu.Unlock()
		for _, part := range []string{"none of the 1 instances", "pg on db1", "every interface", "stay"} {
			if !strings.Contains(text, part) {
				r.t.Errorf("failure %q does not tell %q", text, part)
			}
		}
		if n := r.log.Count("every interface"); n != 1 {
			r.t.Errorf("%d lines about one instance, want one:\n%s", n, r.log)
		}
		r.agent.Register(pgService(1))
		r.want(time.Second, twoNodes, "db2=192.0.2.2:5432", "!content", oneNode)
	})
}

func TestCatalogOfVeryManyServicesIsPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Register(pgService(1))
		c, err := NewClient(ClientOptions{Transport: a})
		if err != nil {
			t.Fatal(err)
		}
		rigs := make([]*catalogRig, 2*crowd)
		for i := range rigs {
			rigs[i] = newCatalogRig(t, CatalogOptions{Client: c}, a)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before := len(a.Requests())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(a.Requests()) - before; n > 11*len(rigs) || n < 9*len(rigs) {
			t.Errorf("%d requests of %d services in ten minutes, want one a minute each", n, len(rigs))
		}
		for _, q := range a.Requests()[before:] {
			if q.Index > 0 {
				t.Fatal("a blocking query among them")
			}
		}
		a.Register(pgService(2))
		time.Sleep(pollCatalog)
		synctest.Wait()
		for _, r := range rigs {
			r.want(0, oneNode, twoNodes)
		}
		for _, r := range rigs {
			r.stop()
		}
	})
}

func TestCatalogRefuses(t *testing.T) {
	c, err := NewClient(ClientOptions{Transport: consultest.New()})
	if err != nil {
		t.Fatal(err)
	}
	now := topology.NewTicker(time.Now)
	for name, o := range map[string]CatalogOptions{
		"no client":  {Cluster: "m", Service: "s", Now: now},
		"no clock":   {Cluster: "m", Service: "s", Client: c},
		"no service": {Cluster: "m", Client: c, Now: now},
		"no cluster": {Service: "s", Client: c, Now: now},
	} {
		if _, err := NewCatalog(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
