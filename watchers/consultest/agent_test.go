package consultest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The comparison with a real Consul is beside the client that uses both, in
// package consul; here is what no real one can be made to do.

type reply struct {
	status int
	header http.Header
	body   string
	err    error
	took   time.Duration
}

func ask(ctx context.Context, t *testing.T, a *Agent, method, url, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://consul/v1"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	resp, err := a.RoundTrip(req)
	r := reply{err: err, took: time.Since(at)}
	if err != nil {
		return r
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	r.status, r.header, r.body, r.err = resp.StatusCode, resp.Header, string(b), err
	return r
}

func TestWaitIsHeldAndLengthened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New()
		a.Put("k", "v")
		r := ask(t.Context(), t, a, "GET", "/kv/k?index=11&wait=32000ms", "")
		if r.status != 200 || r.took != 34*time.Second || r.header.Get("X-Consul-Index") != "11" {
			t.Errorf("got %+v, want status 200 with index 11 after 34s", r)
		}
		r = ask(t.Context(), t, a, "GET", "/kv/none?index=11&wait=20m", "")
		if r.status != 404 || r.took != maxWait+maxWait/16 {
			t.Errorf("got %+v, want status 404 after Consul's longest wait", r)
		}
	})
}

func TestFaults(t *testing.T) {
	cases := []struct {
		name  string
		fault Fault
		ok    func(reply) bool
	}{
		{"none", Fault{}, func(r reply) bool { return r.status == 200 && r.header.Get("X-Consul-Knownleader") == "true" }},
		{"hang", Fault{Hang: true}, func(r reply) bool { return errors.Is(r.err, context.DeadlineExceeded) && r.took == time.Minute }},
		{"reset", Fault{Reset: true, ResetAfter: time.Second}, func(r reply) bool {
			return errors.Is(r.err, syscall.ECONNRESET) && r.took == time.Second
		}},
		{"status", Fault{Status: 429, Text: "slower"}, func(r reply) bool { return r.status == 429 && r.body == "slower" }},
		{"delay", Fault{Delay: time.Second}, func(r reply) bool { return r.status == 200 && r.took == time.Second }},
		{"index", Fault{Index: 7}, func(r reply) bool { return r.header.Get("X-Consul-Index") == "7" }},
		{"index 0", Fault{IndexZero: true}, func(r reply) bool { return r.header.Get("X-Consul-Index") == "0" }},
		{"no headers", Fault{NoHeaders: true}, func(r reply) bool { return r.header.Get("X-Consul-Index") == "" }},
		{"no leader", Fault{NoLeader: true}, func(r reply) bool { return r.header.Get("X-Consul-Knownleader") == "false" }},
		{"contact", Fault{LastContact: time.Second}, func(r reply) bool { return r.header.Get("X-Consul-Lastcontact") == "1000" }},
		{"filtered", Fault{Filtered: true}, func(r reply) bool { return r.header.Get("X-Consul-Results-Filtered-By-ACLs") == "true" }},
		{"deny", Fault{DefaultDeny: true}, func(r reply) bool { return r.header.Get("X-Consul-Default-ACL-Policy") == "deny" }},
		{"empty", Fault{Empty: true}, func(r reply) bool { return r.status == 404 }},
		{"pairs", Fault{Pairs: []Pair{{Key: "other"}}}, func(r reply) bool { return strings.Contains(r.body, "other") }},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			a := New()
			a.Put("k", "v")
			a.Script(func(Request) Fault { return c.fault })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if r := ask(ctx, t, a, "GET", "/kv/k", ""); !c.ok(r) {
				t.Errorf("%s: %+v", c.name, r)
			}
		})
	}
}

func TestFreezeAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New()
		a.Put("k", "v")
		answers := make(chan reply, 2)
		go func() { answers <- ask(t.Context(), t, a, "GET", "/kv/k?index=11", "") }()
		synctest.Wait()
		a.Freeze()
		a.Put("k", "w")
		go func() { answers <- ask(t.Context(), t, a, "GET", "/kv/k", "") }()
		time.Sleep(time.Minute)
		if len(answers) != 0 {
			t.Error("a frozen agent answers")
		}
		a.Thaw()
		synctest.Wait()
		if len(answers) != 2 {
			t.Fatalf("%d answers after the thaw, want both", len(answers))
		}
		go func() { answers <- ask(t.Context(), t, a, "GET", "/kv/k?index=12", "") }()
		synctest.Wait()
		a.Stop()
		<-answers
		<-answers
		if r := <-answers; !errors.Is(r.err, syscall.ECONNRESET) {
			t.Errorf("held query at the stop: %+v, want a reset", r)
		}
		if r := ask(t.Context(), t, a, "GET", "/kv/k", ""); !errors.Is(r.err, syscall.ECONNREFUSED) {
			t.Errorf("after the stop: %+v, want refused", r)
		}
		a.Start()
		if r := ask(t.Context(), t, a, "GET", "/kv/k", ""); r.status != 200 {
			t.Errorf("after the start: %+v", r)
		}
	})
}

func TestCommands(t *testing.T) {
	a := New()
	steps := []struct{ method, url, body, want string }{
		{"PUT", "/session/create", `{"Name":"s","Behavior":"delete"}`, `{"ID":"00000000-0000-0000-0000-000000000001"}`},
		{"PUT", "/kv/k?acquire=00000000-0000-0000-0000-000000000001", "v", "true"},
		{"PUT", "/kv/k?acquire=nobody", "v", `invalid session "nobody"`},
		{"PUT", "/kv/k?cas=0", "w", "false"},
		{"PUT", "/kv/k?cas=11", "w", "true"},
		{"PUT", "/session/renew/nobody", "", "Session id 'nobody' not found"},
		{"PUT", "/kv/k?release=00000000-0000-0000-0000-000000000001", "w", "true"},
		{"PUT", "/kv/k?release=00000000-0000-0000-0000-000000000001", "w", "false"},
		{"PUT", "/kv/l?acquire=00000000-0000-0000-0000-000000000001", "v", "true"},
		{"PUT", "/session/destroy/00000000-0000-0000-0000-000000000001", "", "true"},
		{"GET", "/kv/l", "", ""},
		{"DELETE", "/kv/k?cas=1", "", "false"},
		{"DELETE", "/kv/?recurse", "", "true"},
		{"GET", "/kv/?recurse", "", ""},
		{"GET", "/status/leader", "", `"127.0.0.1:8300"`},
	}
	for _, s := range steps {
		if r := ask(t.Context(), t, a, s.method, s.url, s.body); r.body != s.want || r.err != nil {
			t.Errorf("%s %s: %q, %v; want %q", s.method, s.url, r.body, r.err, s.want)
		}
	}
	a.RequireToken("t")
	if r := ask(t.Context(), t, a, "GET", "/kv/k", ""); r.status != 403 {
		t.Errorf("without the token: %+v, want 403", r)
	}
}

func TestSessionEnd(t *testing.T) {
	a := New()
	a.Acquire("k", "v", "s")
	if a.Acquire("k", "w", "other") {
		t.Error("a held key was acquired by another session")
	}
	a.EndSession("s")
	if _, ok := a.Get("k"); ok {
		t.Error("the key outlived its session")
	}
}
