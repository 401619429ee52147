package mesh

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

const soon = 5 * time.Second

// DNS and prepared queries follow a switchover and a maintenance; a Consul that was
// killed and comes back, and one whose catalog was emptied, have all again; what is
// written is what is read, so nothing is written twice.
func TestRealExternal(t *testing.T) {
	r := newSite(t, lab.ConsulOptions{})
	r.api(http.MethodPost, "query", preparedQuery(t))
	p := r.start(r.consul, "", nil)
	p.see(n1Leads)
	r.stands(soon, first)
	t.Logf("names after %s", r.names(soon, "10.0.0.1", "10.0.0.2"))
	_, srv, err := r.dns.LookupSRV(t.Context(), "", "", "primary.main.service.consul.")
	if err != nil || len(srv) != 1 || srv[0].Port != 5432 {
		t.Errorf("SRV %+v, %v", srv, err)
	}
	queried := func(primary, replica string) func() bool {
		return func() bool { return r.query("main-primary") == primary && r.query("main-replica") == replica }
	}
	r.within(soon, "the prepared queries", queried("10.0.0.1", "10.0.0.2"))
	p.see(n2Leads)
	t.Logf("the names follow a switchover after %s", r.names(soon, "10.0.0.2", "10.0.0.1"))
	r.within(soon, "the prepared queries", queried("10.0.0.2", "10.0.0.1"))

	p.see("n1 down/wrong_role drain/maintenance yes\nn2 up/writer down/wrong_role no")
	r.names(soon, "10.0.0.2", "")
	r.stands(soon, "n1 replica async critical, n2 primary passing")
	p.see(n2Leads)
	r.names(soon, "10.0.0.2", "10.0.0.1")

	const writes = 4 // DNS may tell of the last before its answer is here
	r.within(soon, "the writes", func() bool { return p.Status()[0].Writes == writes })
	if err := r.consul.Kill(); err != nil {
		t.Fatal(err)
	}
	p.see(n1Leads)
	r.within(soon, "the trouble", func() bool { return p.Status()[0].Err != nil })
	if err := r.consul.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("whole again %s after Consul was back", r.names(soon, "10.0.0.1", "10.0.0.2"))
	r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })

	r.api(http.MethodPut, "catalog/deregister", `{"Node":"pgsteer-main"}`)
	t.Logf("written again %s after the node was deregistered", r.names(soon, "10.0.0.1", "10.0.0.2"))
	r.within(soon, "two writes", func() bool { return p.Status()[0].Writes == writes+2 })
	r.within(10*time.Second, "some more reads", func() bool { return p.Status()[0].Repairs == 1 && p.Status()[0].Instances == 2 })
	r.stands(soon, first)
	if s := p.Status()[0]; s.Writes != writes+2 {
		t.Errorf("%d writes after reads without a difference, want %d", s.Writes, writes+2)
	}
}

// Consul's state is put back to that of a backup: to one of before a switchover, and to one
// in which there is neither the session nor the lock nor anything published.
func TestRealRestored(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the end of a session, up to 20 s")
	}
	r := newSite(t, lab.ConsulOptions{})
	empty := r.api(http.MethodGet, "snapshot", "")
	p := r.start(r.consul, "", func(o *Options) { o.Name = "one" })
	p.see(n1Leads)
	r.stands(soon, first)
	before := r.api(http.MethodGet, "snapshot", "")
	p.see(n2Leads)
	r.stands(soon, second)
	q := r.start(r.consul, "", func(o *Options) { o.Name = "two" })
	q.see(n2Leads)
	r.within(soon, "the name of the publisher", func() bool { return q.Status()[0].Publisher == "one" })
	writes := func() uint64 { return p.Status()[0].Writes + q.Status()[0].Writes }
	for _, c := range []struct {
		backup string
		within time.Duration
	}{{before, soon}, {empty, soon}, {before, 25 * time.Second}} { // at last with a session that nobody has any more
		n := writes()
		r.api(http.MethodPut, "snapshot", c.backup)
		t.Logf("whole again after %s", r.within(c.within, second, func() bool { return writes() > n && r.is() == second }))
		r.within(soon, "one publisher", func() bool {
			one, two := p.Status()[0], q.Status()[0]
			return one.Publishing != two.Publishing && one.Publisher == two.Publisher && one.Err == nil && two.Err == nil
		})
	}
}

// The least rights that the manual lists suffice; a token that is revoked stops
// everything, and changes nothing, until it is given back.
func TestRealToken(t *testing.T) {
	for _, c := range []struct {
		name, rules string // rules: what the manual's block begins with
		options     func(*Options)
		first       string
		next        string
	}{
		{"external", "# external", nil, first, second},
		{"local", "# local", withSidecar, "n1 primary passing", "n1 replica async passing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newSite(t, lab.ConsulOptions{ACL: true})
			body, err := json.Marshal(map[string]string{"Name": "publish", "Rules": manual(t, c.rules)})
			if err != nil {
				t.Fatal(err)
			}
			r.api(http.MethodPut, "acl/policy", string(body))
			const secret = "2ab00000-0000-0000-0000-000000000000"
			give := func() string {
				var token struct{ AccessorID string }
				text := r.api(http.MethodPut, "acl/token", `{"SecretID":"`+secret+`","Policies":[{"Name":"publish"}]}`)
				if err := json.Unmarshal([]byte(text), &token); err != nil {
					t.Fatal(err)
				}
				return token.AccessorID
			}
			accessor := give()
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
			p := r.start(r.consul, file, c.options)
			p.see(n1Leads)
			r.stands(soon, c.first)
			r.api(http.MethodDelete, "acl/token/"+accessor, "")
			p.see(n2Leads)
			r.within(40*time.Second, "the refusal", func() bool {
				err := p.Status()[0].Err
				return err != nil && strings.Contains(err.Error(), "403")
			})
			t.Log(p.Status()[0].Err)
			if is := r.is(); is != c.first {
				t.Errorf("%s without a token, want %s", is, c.first)
			}
			give()
			t.Logf("whole again %s after the token was given back", r.stands(soon, c.next))
			r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
		})
	}
}

// The session of a publisher ends with the node of the client agent that it asks.
func TestRealExternalThroughAgent(t *testing.T) {
	r := newSite(t, lab.ConsulOptions{})
	host, err := r.consul.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := r.start(host, "", nil)
	p.see(n1Leads)
	r.stands(soon, first)
	if err := host.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.see(n2Leads)
	r.within(soon, "the trouble", func() bool { return p.Status()[0].Err != nil })
	if is := r.is(); is != first {
		t.Errorf("%s, want what stood before", is)
	}
	if err := host.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("whole again %s after the agent was back", r.stands(soon, second))
	r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
}

// A client agent that is restarted has lost everything and gets it back; while it
// is away, its node is gone from the catalog. A dead pgsteer's check turns critical.
func TestRealLocal(t *testing.T) {
	r := newSite(t, lab.ConsulOptions{})
	host, err := r.consul.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := r.start(r.consul, "", on("n2"))
	p := r.start(host, "", func(o *Options) {
		withSidecar(o)
		s := o.Clusters["main"]
		s.TTL, s.PrimaryTTL = 2*time.Second, 2*time.Second
		o.Clusters["main"] = s
	})
	p.see(n1Leads)
	other.see(n1Leads)
	r.stands(soon, first)
	r.names(soon, "10.0.0.1", "10.0.0.2")
	proxied := func(role string) func() bool {
		return func() bool {
			return strings.Contains(r.api(http.MethodGet, "catalog/service/main-sidecar-proxy", ""), `"ServiceTags":["`+role+`"`)
		}
	}
	r.within(soon, "the sidecar's tags", proxied(RolePrimary))
	p.see(n2Leads)
	other.see(n2Leads)
	t.Logf("the names follow a switchover after %s", r.names(soon, "10.0.0.2", "10.0.0.1"))
	r.within(soon, "the sidecar's tags", proxied(RoleReplica))
	for name, harm := range map[string]func() error{
		"stopped": func() error { return host.Stop(t.Context()) }, "killed": host.Kill,
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		r.within(soon, "the trouble", func() bool { return p.Status()[0].Err != nil })
		if err := host.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		took := r.within(soon, "all", func() bool { return r.is() == second && proxied(RoleReplica)() })
		t.Logf("whole again %s after the agent that was %s was back", took, name)
		r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
	}
	p.stop()
	begin := time.Now()
	r.stands(soon, "n1 replica async critical, n2 primary passing")
	t.Logf("critical %s after the last word, the TTL is 2s", time.Since(begin))
	r.names(soon, "10.0.0.2", "")
	other.see("n1 up/writer down/wrong_role no")
	r.stands(soon, "n1 replica async critical, n2 critical")
}

// One of two publishers dies; Consul ends its session, and the other publishes.
func TestRealHandover(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the end of a session, up to 20 s")
	}
	r := newSite(t, lab.ConsulOptions{})
	const ttl = 10 * time.Second
	gate := &gate{next: http.DefaultTransport.(*http.Transport).Clone()}
	gate.next.DisableKeepAlives = true
	p := r.start(r.consul, "", func(o *Options) {
		o.Name = "one"
		client, err := consul.NewClient(consul.ClientOptions{Address: r.consul.Addr(), Transport: gate})
		if err != nil {
			t.Fatal(err)
		}
		o.Client = client
	})
	p.see(n1Leads)
	r.stands(soon, first)
	q := r.start(r.consul, "", func(o *Options) { o.Name = "two" })
	q.see(n2Leads)
	r.within(soon, "the name of the publisher", func() bool { return q.Status()[0].Publisher == "one" })
	gate.cut.Store(true)
	took := r.stands(2*ttl+time.Second, second)
	t.Logf("the other one has published %s after the death, twice the TTL is %s", took, 2*ttl)
	if took > 2*ttl+500*time.Millisecond {
		t.Errorf("that is more than twice the TTL and a round trip")
	}
	gate.cut.Store(false)
	r.within(soon, "the first one's knowledge", func() bool { s := p.Status()[0]; return !s.Publishing && s.Publisher == "two" && s.Err == nil })
	if is := r.is(); is != second {
		t.Errorf("%s", is)
	}
	q.stop()
	t.Logf("%s after a stop", r.stands(time.Second, first))
}
