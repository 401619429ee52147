package consultest

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What a real Consul does too is compared with it in package consul.

func TestTransactionFaults(t *testing.T) {
	const body = `[{"KV":{"Verb":"get-tree","Key":"a/"}},{"KV":{"Verb":"get-tree","Key":"b/"}}]`
	for _, c := range []struct {
		name  string
		fault Fault
		query string
		body  string
		ok    func(reply) bool
	}{
		{"none", Fault{}, "stale", body, func(r reply) bool { return strings.Count(r.body, `"KV"`) == 2 && r.header.Get("X-Consul-Index") == "" }},
		{"delay", Fault{Delay: time.Second}, "", body, func(r reply) bool { return r.took == time.Second }},
		{"empty", Fault{Empty: true}, "", body, func(r reply) bool { return r.status == 200 && !strings.Contains(r.body, `"KV"`) }},
		{"pairs", Fault{Pairs: []Pair{{Key: "b/x"}, {Key: "c/x"}}}, "", body, func(r reply) bool {
			return strings.Contains(r.body, "b/x") && !strings.Contains(r.body, "c/x") && !strings.Contains(r.body, "a/k")
		}},
		{"contact", Fault{LastContact: time.Second}, "stale", body, func(r reply) bool { return r.header.Get("X-Consul-Lastcontact") == "1000" }},
		{"filtered", Fault{Filtered: true}, "", body, func(r reply) bool {
			return strings.Contains(r.body, `"ResultsFilteredByACLs":true`) && r.header.Get("X-Consul-Results-Filtered-By-ACLs") == ""
		}},
		{"a write", Fault{}, "", `[{"KV":{"Verb":"set","Key":"a/"}}]`, func(r reply) bool { return r.status == 400 }},
		{"nonsense", Fault{}, "", `[`, func(r reply) bool { return r.status == 400 }},
		{"two consistencies", Fault{}, "stale&consistent", body, func(r reply) bool { return r.status == 400 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := New()
				a.Put("a/k", "1", "b/k", "2", "other", "3")
				a.Script(func(Request) Fault { return c.fault })
				if r := ask(t.Context(), t, a, "PUT", "/txn?"+c.query, c.body); !c.ok(r) {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// A transaction takes all of its locks or none, and tells all that others have.
func TestTransactionLocks(t *testing.T) {
	a := New()
	a.Acquire("held", "w", "other")
	a.Acquire("too", "w", "other")
	a.Acquire("mine", "v", "s")
	lock := func(keys ...string) string {
		var ops []string
		for _, k := range keys {
			ops = append(ops, `{"KV":{"Verb":"lock","Key":"`+k+`","Value":"dg==","Session":"s"}}`)
		}
		return "[" + strings.Join(ops, ",") + "]"
	}
	r := ask(t.Context(), t, a, "PUT", "/txn", lock("free", "held", "mine", "too"))
	if _, taken := a.Get("free"); r.status != 409 || taken || strings.Count(r.body, "lock is already held") != 2 || !strings.Contains(r.body, `"OpIndex":1`) || !strings.Contains(r.body, `"OpIndex":3`) {
		t.Errorf("%+v, want both that are held", r)
	}
	r = ask(t.Context(), t, a, "PUT", "/txn", lock("free", "mine"))
	if p, _ := a.Get("free"); r.status != 200 || p.Session != "s" || string(p.Value) != "v" {
		t.Errorf("%+v, and there is %+v", r, p)
	}
	a.EndSession("s")
	if r = ask(t.Context(), t, a, "PUT", "/txn", lock("free")); r.status != 409 || !strings.Contains(r.body, "invalid session") {
		t.Errorf("%+v, want the session to be unknown", r)
	}
}

func TestHide(t *testing.T) {
	a := New()
	a.Put("a/k", "1", "a/secret/k", "2")
	a.Register(Service{Node: "n", ServiceName: "pg"}, Service{Node: "n", ServiceName: "other"})
	a.Hide("a/secret", "pg")
	const filtered = "X-Consul-Results-Filtered-By-ACLs"
	for _, c := range []struct{ url, found, header string }{
		{"/kv/a/?recurse", "a/k", "true"},
		{"/kv/a/k", "a/k", ""},
		{"/kv/a/secret/k", "", "true"},
		{"/catalog/service/pg", "[]", "true"},
		{"/catalog/service/other", `"other"`, ""},
	} {
		r := ask(t.Context(), t, a, "GET", c.url, "")
		if !strings.Contains(r.body, c.found) || strings.Contains(r.body, "secret") || r.header.Get(filtered) != c.header {
			t.Errorf("%s: %+v, want %s and filtered %q", c.url, r, c.found, c.header)
		}
	}
	a.Hide()
	if r := ask(t.Context(), t, a, "GET", "/kv/a/secret/k", ""); r.status != 200 {
		t.Errorf("shown again: %+v", r)
	}
}

func TestCatalog(t *testing.T) {
	a := New()
	names := func() (out []string) {
		t.Helper()
		r := ask(t.Context(), t, a, "GET", "/catalog/service/pg", "")
		var all []Service
		if err := json.Unmarshal([]byte(r.body), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			out = append(out, s.Node+"/"+s.ServiceID)
		}
		return out
	}
	want := func(list ...string) {
		t.Helper()
		if got := strings.Join(names(), " "); got != strings.Join(list, " ") {
			t.Errorf("instances %q, want %q", got, list)
		}
	}
	a.Register(Service{Node: "b", ServiceName: "pg"}, Service{Node: "a", ServiceName: "pg", ServiceID: "two"}, Service{Node: "a", ServiceName: "pg", ServiceID: "one"})
	want("a/one", "a/two", "b/pg")
	a.Deregister("a", "two")
	want("a/one", "b/pg")
	a.Deregister("a", "")
	want("b/pg")
	if r := ask(t.Context(), t, a, "PUT", "/catalog/register", "{"); r.status != 400 {
		t.Errorf("nonsense: %+v", r)
	}
	a.Script(func(Request) Fault { return Fault{Empty: true} })
	want()
}

// The checks of nodes of one kind, with the tags that their instances had.
func TestState(t *testing.T) {
	a := New()
	a.RegisterNode(Node{Node: "x", Meta: map[string]string{"external-node": "true"}})
	for _, s := range []Service{{Node: "x", ServiceName: "pg", ServiceTags: []string{"old"}}, {Node: "x", ServiceName: "secret"}, {Node: "y", ServiceName: "pg"}, {Node: "x", ServiceName: "other"}} {
		a.Register(s)
		a.SetCheck(Check{Node: s.Node, CheckID: s.ServiceName + "-check", ServiceID: s.ServiceName, ServiceName: s.ServiceName})
	}
	a.Register(Service{Node: "x", ServiceName: "pg", ServiceTags: []string{"new"}})
	a.Hide("secret")
	r := ask(t.Context(), t, a, "GET", "/health/state/any?node-meta=external-node:true&filter="+url.QueryEscape(`CheckID matches "^pg"`), "")
	if strings.Count(r.body, "CheckID") != 1 || !strings.Contains(r.body, `"pg-check"`) || !strings.Contains(r.body, `["old"]`) {
		t.Errorf("%+v, want the one of pg on x, with its old tags", r)
	}
	r = ask(t.Context(), t, a, "GET", "/health/state/any", "")
	if strings.Count(r.body, "CheckID") != 3 || r.header.Get("X-Consul-Results-Filtered-By-ACLs") != "true" {
		t.Errorf("%+v, want all that is not hidden", r)
	}
}
