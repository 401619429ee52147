package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// restRig is a Patroni cluster of three nodes whose store the agent does not
// know: it asks the members, and begins with two of them.
type restRig struct{ *patroniRig }

func newRESTRig(t *testing.T, release string) *restRig {
	t.Helper()
	needs := []string{lab.NeedConsul, lab.NeedPatroni}
	if release != "" {
		needs = append(needs, "patroni-"+release)
	}
	p := &restRig{&patroniRig{front: &front{rig: newRig(t, needs...)}, whole: t}}
	var err error
	p.consul, err = p.lab.Consul(t.Context())
	p.do(err)
	p.patroni, err = p.lab.Patroni(t.Context(), lab.PatroniOptions{
		Consul: p.consul, Release: release, Tags: map[string]map[string]any{"n2": {"zone": "b", "weight": 10}},
	})
	p.do(err)
	p.configure(`consul: {address: "http://127.0.0.1:1"} # nobody is there
postgres: {user: %s, password_file: %q}
clusters:
  main:
    authority: patroni
    patroni: {source: rest, endpoints: ["http://%s", "http://%s"]}
`, p.patroni.ProbeUser(), p.password(p.patroni.Password(p.patroni.ProbeUser())), p.patroni.Node("n2").RESTAddr(), p.patroni.Node("n3").RESTAddr())
	p.up()
	return p
}

// step runs a part of the test on a settled cluster and gives it the leader.
func (p *restRig) step(name string, part func(leader *lab.PatroniNode)) {
	p.whole.Helper()
	p.whole.Run(name, func(t *testing.T) {
		p.t = t
		defer func() { p.t = p.whole }()
		leader, begin := p.calm(), time.Now()
		book := p.record()
		part(leader)
		book.proven(t)
		t.Logf("done after %s", time.Since(begin))
	})
}

// calm waits until everything is as it should be and returns the leader.
func (p *restRig) calm() *lab.PatroniNode {
	p.t.Helper()
	p.do(p.consul.Start(p.t.Context()))
	for _, n := range p.patroni.Nodes() {
		p.do(n.Start(p.t.Context()))
		p.do(n.Thaw())
	}
	p.do(p.patroni.WaitRunning(p.t.Context()))
	leader, err := p.patroni.Leader(p.t.Context())
	p.do(err)
	p.until(leader.Name()+" to be the writer and the others to serve reads", func() bool {
		v := p.view("main")
		if v == nil || v.Snapshot.Authority.State != topology.AuthorityStateCurrent || v.Snapshot.Writer != leader.Name() {
			return false
		}
		reads, _ := v.Snapshot.Pool("replica")
		return len(reads.Up()) == 2 && !reads.Fallback
	})
	return leader
}

// Patroni's REST interface is the authority of an agent that has no Consul.
func TestPatroniREST(t *testing.T) {
	p := newRESTRig(t, "")
	p.step("picture", p.testPicture)
	p.step("documents", p.testDocuments)
	p.step("switchover", p.testRESTSwitchover)
	p.step("Patroni of the leader is killed", p.testPatroniKilled)
	p.step("host of the leader is killed", p.testHostKilled)
	p.step("the store stops", p.testStoreStops)
}

func TestPatroniREST4(t *testing.T) {
	p := newRESTRig(t, lab.Patroni4)
	p.step("picture", p.testPicture)
	p.step("documents", p.testDocuments)
	p.step("switchover", p.testRESTSwitchover)
	p.step("Patroni of the leader is killed", p.testPatroniKilled)
}

// testPicture: what the members say is what their keys say.
func (p *restRig) testPicture(*lab.PatroniNode) {
	var pairs api.KVPairs
	p.do(json.Unmarshal([]byte(p.consulDo(http.MethodGet, "kv/"+key("?recurse"), "")), &pairs))
	want, nodes, faults := consul.Picture(key(""), pairs)
	if len(faults) > 0 {
		p.t.Fatal(faults)
	}
	plain := func(a topology.Authority) topology.Authority {
		a.Optime, a.OptimeIndex = 0, 0 // the leader's own position is newer than its key
		a.Members = slices.Clone(a.Members)
		for i := range a.Members {
			a.Members[i].LSN = 0
			if a.Members[i].State == "streaming" {
				a.Members[i].State = "running"
			}
		}
		return a
	}
	var got topology.Authority
	p.knows("the dynamic configuration", func(a *topology.Authority) bool {
		got = *a
		return a.TTL != 0
	})
	if diff := cmp.Diff(plain(want), plain(got)); diff != "" {
		p.t.Errorf("differs (-Consul +REST):\n%s", diff)
	}
	for _, n := range nodes {
		if have, _ := p.view("main").Snapshot.Node(n.Name); have.Address != n.Address {
			p.t.Errorf("%s is at %s, want %s", n.Name, have.Address, n.Address)
		}
	}
	if got.Optime == 0 {
		p.t.Error("the leader's position is not known")
	}
}

// soon fails the test for what took longer after a moment.
func (p *restRig) soon(what string, since time.Time) {
	p.t.Helper()
	d := time.Since(since)
	p.t.Logf("%s after %s", what, d)
	if d > 5*time.Second { // 2 s is the aim; a machine may stand still for a while
		p.t.Errorf("%s only %s later, want within 5 s", what, d)
	}
}

func (p *restRig) testRESTSwitchover(old *lab.PatroniNode) {
	next := p.others(old)[0]
	done := make(chan error, 1)
	go func() { done <- p.patroni.Switchover(p.whole.Context(), next.Name()) }()
	writable := p.asWriter(next)
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	p.soon("the new writer is up", writable)
	p.do(<-done)
}

// testPatroniKilled: PostgreSQL goes on without its Patroni. It stays the writer
// for as long as its key lives, by the word of the others.
func (p *restRig) testPatroniKilled(old *lab.PatroniNode) {
	p.do(old.Kill())
	p.knows("by the others alone that the leader leads", func(a *topology.Authority) bool {
		return a.Leader == old.Name() && a.SessionAgrees == topology.Unknown
	})
	p.during(5*time.Second, "the writer stays", func() bool {
		v, _ := p.verdict("main", "primary", old.Name())
		return v == topology.Up
	})
	next := p.elected(old)
	named := time.Now()
	p.is("main", "primary", old.Name(), topology.Down, topology.CodeFenced)
	p.soon("the old writer is out", named)
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	p.do(old.Postgres().Kill())
}

func (p *restRig) testHostKilled(old *lab.PatroniNode) {
	begin := time.Now()
	p.do(old.Kill())
	p.do(old.Postgres().Kill())
	p.until("the old writer to be down", func() bool {
		v, _ := p.verdict("main", "primary", old.Name())
		return v == topology.Down
	})
	p.soon("the old writer is out", begin)
	writable := p.asWriter(p.elected(old))
	next, err := p.patroni.Leader(p.t.Context())
	p.do(err)
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	p.soon("the new writer is up", writable)
}

// elected waits until another member has the key.
func (p *restRig) elected(old *lab.PatroniNode) *lab.PatroniNode {
	p.t.Helper()
	var next *lab.PatroniNode
	p.until("another leader", func() bool {
		name, err := p.consul.Get(p.t.Context(), key("leader"))
		next = p.patroni.Node(name)
		return err == nil && next != nil && next != old
	})
	return next
}

// testStoreStops: nobody can prove anything, and PostgreSQL demotes by itself.
func (p *restRig) testStoreStops(leader *lab.PatroniNode) {
	p.do(p.consul.Stop(p.t.Context()))
	took := p.until("the authority to be lost", func() bool {
		return p.view("main").Snapshot.Authority.State == topology.AuthorityStateLost
	})
	p.t.Logf("lost after %s", took)
	p.until("the leader to have demoted itself", func() bool {
		v, _ := p.verdict("main", "primary", leader.Name())
		return v == topology.Down
	})
	p.until("the reads to go on", func() bool {
		reads, _ := p.view("main").Snapshot.Pool("replica")
		return len(reads.Up()) > 0
	})
	p.do(p.consul.Start(p.t.Context()))
	p.calm()
}
