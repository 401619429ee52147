package consul

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// The fake agent is only worth what it has in common with a real one: the same
// reads and writes, over the same client, must give the same answers.
func TestFakeBehavesLikeConsul(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	server, err := l.Consul(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	realClient, err := NewClient(ClientOptions{Address: server.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(realClient.Close)
	fakeClient, err := NewClient(ClientOptions{Transport: consultest.New()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(behaviour(t, realClient), behaviour(t, fakeClient)); diff != "" {
		t.Errorf("behaviour (-Consul +fake):\n%s", diff)
	}
}

// conduct is one read after another, described without absolute indexes.
type conduct struct {
	t    *testing.T
	c    *Client
	last map[string]uint64
	out  []string
}

func (b *conduct) note(format string, args ...any) {
	b.out = append(b.out, fmt.Sprintf(format, args...))
}

// read reads a key, or a prefix that ends in a slash, and notes what it found,
// and how the index moved. With wait it blocks from the last index.
func (b *conduct) read(key string, wait time.Duration) {
	b.t.Helper()
	q, err := b.c.Options(b.t.Context(), Default)
	if err != nil {
		b.t.Fatal(err)
	}
	if wait > 0 {
		q.WaitIndex, q.WaitTime = b.last[key], wait
	}
	at := time.Now()
	found, meta, err := b.get(key, q)
	if err != nil {
		b.t.Fatal(err)
	}
	held := wait > 0 && time.Since(at) >= wait
	move := "same"
	switch was := b.last[key]; {
	case meta.LastIndex > was:
		move = "up"
	case meta.LastIndex < was:
		move = "down"
	}
	b.last[key] = meta.LastIndex
	var values []string
	own := uint64(0)
	for _, p := range found {
		values = append(values, fmt.Sprintf("%s=%s/%v", p.Key, p.Value, p.Session != ""))
		own = max(own, p.ModifyIndex)
	}
	b.note("%s: %s index %s, that of the newest key: %v, held: %v, leader: %v, contact: %v",
		key, strings.Join(values, " "), move, meta.LastIndex == own, held, meta.KnownLeader, meta.LastContact)
}

func (b *conduct) get(key string, q *api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
	if strings.HasSuffix(key, "/") {
		return b.c.KV().List(key, q)
	}
	p, meta, err := b.c.KV().Get(key, q)
	if p == nil {
		return nil, meta, err
	}
	return api.KVPairs{p}, meta, err
}

func (b *conduct) put(key, value, session string) {
	b.t.Helper()
	p := &api.KVPair{Key: key, Value: []byte(value), Session: session}
	var err error
	done := true
	if session == "" {
		_, err = b.c.KV().Put(p, nil)
	} else {
		done, _, err = b.c.KV().Acquire(p, nil)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.note("put %s: %v", key, done)
}

// putAfterDelay acquires a key once the lock delay of its last session is over.
func (b *conduct) putAfterDelay(key, value, session string) {
	b.t.Helper()
	for before := len(b.out); ; b.out = b.out[:before] {
		b.put(key, value, session)
		if b.out[before] == "put "+key+": true" || b.t.Context().Err() != nil {
			return
		}
	}
}

func (b *conduct) session() string {
	b.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		id, _, err := b.c.api.Session().CreateNoChecks(&api.SessionEntry{Behavior: "delete", LockDelay: time.Millisecond}, nil)
		if err == nil {
			return id
		}
		// A server that has just elected itself may not have registered its node yet.
		if !strings.Contains(err.Error(), "Missing node registration") || time.Now().After(deadline) {
			b.t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func behaviour(t *testing.T, c *Client) []string {
	t.Helper()
	const short = 50 * time.Millisecond
	b := &conduct{t: t, c: c, last: map[string]uint64{}}
	b.read("x/leader", 0) // nothing there
	b.read("x/", 0)
	b.read("x/leader", short) // held
	b.put("y/other", "1", "")
	b.read("x/leader", short) // nothing has the index of everything
	b.read("x/leader", short)
	b.put("y/other", "1", "") // the same again is no write
	b.read("x/leader", short)
	s1, s2 := b.session(), b.session()
	b.put("x/leader", "a", s1)
	b.read("x/leader", short) // at once
	b.read("x/", short)
	b.put("x/leader", "b", s2) // refused
	b.read("x/leader", short)
	b.put("x/leader", "a", s1) // renewed
	b.read("x/leader", short)
	b.put("x/members/a", "m", s1)
	b.read("x/leader", short) // held: the key's own index counts
	b.read("x/", short)
	if _, err := c.api.Session().Destroy(s1, nil); err != nil {
		t.Fatal(err)
	}
	b.read("x/leader", short) // gone with its session
	b.read("x/", short)
	b.putAfterDelay("x/leader", "b", s2)
	b.read("x/leader", short)
	b.read("x/", 0)
	b.transactions()
	b.services()
	return b.out
}

// transactions notes what transactions of reads find.
func (b *conduct) transactions() {
	b.t.Helper()
	many := make([]string, 129)
	for _, c := range []struct {
		mode     Consistency
		prefixes []string
	}{
		{Default, []string{"x/"}},
		{Stale, []string{"none/", "y/other", "x/leader", "x/"}},
		{Consistent, []string{"x/", "y"}},
		{Stale, many},
	} {
		pairs, meta, err := b.c.trees(b.t.Context(), c.mode, c.prefixes)
		if err != nil {
			b.note("transaction of %d fails: %v", len(c.prefixes), err)
			continue
		}
		var found []string
		for _, p := range pairs {
			found = append(found, fmt.Sprintf("%s=%s/%v", p.Key, p.Value, p.Session != ""))
		}
		b.note("transaction of %d: %v, index %d, leader: %v, contact: %v, filtered: %v",
			len(c.prefixes), found, meta.LastIndex, meta.KnownLeader, meta.LastContact, meta.ResultsFilteredByACLs)
	}
}

// services notes what a service of the catalog is, and how its index moves.
func (b *conduct) services() {
	b.t.Helper()
	const short = 50 * time.Millisecond
	b.service("no such service", 0)
	b.service("still none", short)
	b.register("db1", "pg", 1)
	b.service("registered", short)
	b.register("db1", "pg", 1)
	b.service("the same again", short)
	b.register("db2", "other", 1)
	b.service("another service", short)
	b.register("db2", "pg", 2)
	b.service("a second node", short)
	b.put("y/other", "3", "")
	b.service("a key was written", short)
	for _, node := range []string{"db1", "db2"} {
		if _, err := b.c.api.Catalog().Deregister(&api.CatalogDeregistration{Node: node}, nil); err != nil {
			b.t.Fatal(err)
		}
		b.service(node+" is gone", short)
	}
	b.service("all are gone", short)
}

// service reads service pg and notes what it found, as read does for keys.
func (b *conduct) service(what string, wait time.Duration) {
	b.t.Helper()
	q, err := b.c.Options(b.t.Context(), Default)
	if err != nil {
		b.t.Fatal(err)
	}
	if wait > 0 {
		q.WaitIndex, q.WaitTime = b.last["service pg"], wait
	}
	at := time.Now()
	all, meta, err := b.c.api.Catalog().Service("pg", "", q)
	if err != nil {
		b.t.Fatal(err)
	}
	var found []string
	for _, s := range all {
		found = append(found, fmt.Sprintf("%s %s %s %s %d %v %v", s.Node, s.Address, s.ServiceID, s.ServiceAddress, s.ServicePort, s.ServiceTags, s.ServiceMeta))
	}
	b.note("%s: %v, index moved: %v, held: %v", what, found, meta.LastIndex != b.last["service pg"], wait > 0 && time.Since(at) >= wait)
	b.last["service pg"] = meta.LastIndex
}

func (b *conduct) register(node, service string, port int) {
	b.t.Helper()
	_, err := b.c.api.Catalog().Register(&api.CatalogRegistration{Node: node, Address: "192.0.2.1", Service: &api.AgentService{
		ID: "id", Service: service, Port: port, Tags: []string{"t"}, Meta: map[string]string{"k": "v"},
	}}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
}

// The watcher against a real Consul: a new leader at once, a frozen and a
// killed server noticed, and good again within 5 s.
func TestWatcherAgainstConsul(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	server, err := l.Consul(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(ClientOptions{Address: server.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &conduct{t: t, c: c, last: map[string]uint64{}}
	s1, s2 := b.session(), b.session()
	b.put(alpha+"members/a", member("primary", "192.0.2.11:5432"), s1)
	b.put(alpha+"members/b", member("replica", "192.0.2.12:5432"), s2)
	b.put(alpha+"leader", "a", s1)
	obs := observe(t, c)
	until(t, obs, 2*time.Second, "a leads", leads("a"))
	if _, err := c.KV().Delete(alpha+"leader", nil); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 2*time.Second, "nobody leads", leads(""))
	b.put(alpha+"leader", "b", s2)
	until(t, obs, 2*time.Second, "b leads", leads("b"))

	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 6*time.Second, "the frozen server is noticed", failed(topology.FailTimeout))
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 6*time.Second, "b leads after the freeze", leads("b"))
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 6*time.Second, "the dead server is noticed", failed(topology.FailRefused))
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 8*time.Second, "b leads after the restart", leads("b"))
}

// observe runs a watcher that reads every 2 s.
func observe(t *testing.T, c *Client) <-chan topology.Observation {
	t.Helper()
	w, err := New(Options{
		Cluster: "main", Scope: "alpha", Client: c, Now: topology.NewTicker(time.Now),
		ReadEvery: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, done := make(chan topology.Observation, 1000), make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx, func(o topology.Observation) { out <- o })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

func leads(name string) func(topology.Observation) bool {
	return func(o topology.Observation) bool { return o.Authority != nil && o.Authority.Leader == name }
}

func failed(class topology.FailureClass) func(topology.Observation) bool {
	return func(o topology.Observation) bool { return o.Failure != nil && o.Failure.Class == class }
}

func until(t *testing.T, obs <-chan topology.Observation, limit time.Duration, what string, ok func(topology.Observation) bool) {
	t.Helper()
	began := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case o := <-obs:
			if ok(o) {
				t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
				return
			}
		case <-timer.C:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
