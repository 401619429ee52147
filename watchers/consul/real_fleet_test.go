package consul

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// putScopes writes many clusters into Consul, led by a.
func putScopes(tb testing.TB, server *lab.Consul, n int) {
	tb.Helper()
	all := make(map[string]string)
	for i := range n {
		for key, value := range map[string]string{"leader": "a", "config": "{}", "members/a": "{}", "members/b": "{}"} {
			all["service/"+scopeOf(i)+"/"+key] = value
		}
	}
	if err := server.PutAll(tb.Context(), all); err != nil {
		tb.Fatal(err)
	}
}

// untilAll waits until the watchers' newest words are as wanted.
func (r *fleetRig) untilAll(limit time.Duration, what string, want map[string]int) {
	r.t.Helper()
	began := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !maps.Equal(r.words(), want) {
		if time.Since(began) > limit {
			r.t.Fatalf("%s: not within %v: %v, want %v", what, limit, r.words(), want)
		}
		<-tick.C
	}
	r.t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
}

func (r *fleetRig) end() {
	for _, s := range r.ships {
		s.cancel()
	}
	for _, s := range r.ships {
		<-s.done
	}
	r.c.Close()
}

// Many clusters on a real Consul: within its limit of connections, with few
// requests, and as quick as is promised.
func TestFleetOnConsul(t *testing.T) {
	const n = 260
	server := realConsul(t, lab.ConsulOptions{})
	putScopes(t, server, n)
	g := labtest.CountConsul(t, server)
	r := fleetOn(t, ClientOptions{Address: g.URL}, n)
	defer r.end()
	r.untilAll(20*time.Second, "all are known", map[string]int{"a": n})

	put := func(i int, leader string) {
		if err := server.Put(t.Context(), "service/"+scopeOf(i)+"/leader", leader); err != nil {
			t.Fatal(err)
		}
	}
	put(100, "b")
	r.untilAll(5*time.Second, "a quiet cluster has another leader", map[string]int{"a": n - 1, "b": 1})
	if err := server.Delete(t.Context(), "service/"+scopeOf(7)+"/leader"); err != nil {
		t.Fatal(err)
	}
	r.untilAll(5*time.Second, "another one has none", map[string]int{"a": n - 2, "b": 1, "(none)": 1})
	for _, s := range r.ships {
		s.w.Confirm()
	}
	put(7, "b")
	r.untilAll(5*time.Second, "all are in doubt, and one has a leader again", map[string]int{"a": n - 2, "b": 2})
	most, requests := g.Peak(), g.Counts()
	t.Logf("at most %d connections; requests %v", most, requests)
	// A server learns of an end after the client has another connection already;
	// what counts is Consul's own limit for a client's address.
	const limit = 200
	if most >= limit || requests["/v1/txn"] == 0 || requests["blocking"] > 200 {
		t.Errorf("at most %d connections, want less than %d; requests %v", most, limit, requests)
	}

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	r.untilAll(15*time.Second, "the dead server is noticed", map[string]int{"!store": n}) // by the gate's word: 502
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.untilAll(15*time.Second, "all are known again", map[string]int{"a": n - 2, "b": 2})
}

// fleetOn runs n watchers of a client of a real Consul.
func fleetOn(tb testing.TB, o ClientOptions, n int) *fleetRig {
	tb.Helper()
	c, err := NewClient(o)
	if err != nil {
		tb.Fatal(err)
	}
	r := &fleetRig{t: tb, c: c, began: time.Now()}
	for i := range n {
		r.launch(scopeOf(i))
	}
	return r
}

// Of many clusters the token may not read two; those are denied and no other is.
func TestFleetOnConsulWithACLs(t *testing.T) {
	const n = 130
	server := realConsul(t, lab.ConsulOptions{ACL: true})
	putScopes(t, server, n)
	file := filepath.Join(t.TempDir(), "token")
	rules := `key_prefix "service/" { policy = "read" }`
	hide := fmt.Sprintf(` key_prefix "service/%s/" { policy = "deny" } key_prefix "service/%s/members/b" { policy = "deny" }`, scopeOf(3), scopeOf(70))
	_, secret := newToken(t, server, rules+hide)
	writeFile(t, file, []byte(secret))
	r := fleetOn(t, ClientOptions{Address: server.Addr(), TokenFile: file}, n)
	defer r.end()
	r.untilAll(20*time.Second, "two are denied", map[string]int{"a": n - 2, "!denied": 2})
	for _, s := range r.ships {
		for _, g := range s.all() {
			if g.o.Nodes == nil && g.o.Failure == nil || g.o.Authority != nil && len(g.o.Authority.Members) != 2 {
				t.Errorf("%s told %+v", s.name, g.o)
			}
		}
	}
	_, secret = newToken(t, server, rules)
	writeFile(t, file, []byte(secret))
	r.untilAll(10*time.Second, "the whole token is used", map[string]int{"a": n})
}
