package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// What each verdict, each kind of silence and each refusal comes to, by the flags.
func TestCheckResults(t *testing.T) {
	verdicts := map[string]topology.Verdict{
		"/up": topology.Up, "/drain": topology.Drain, "/down": topology.Down, "/undecided": topology.Undecided,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, ok := verdicts[r.URL.Path]
		switch {
		case ok:
			_ = json.NewEncoder(w).Encode(status.Check{NodeVerdict: topology.NodeVerdict{Verdict: v}})
		case r.URL.Path == "/hangs":
			<-r.Context().Done()
		case r.URL.Path == "/nobody":
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"error": "no such node"}`)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer srv.Close()
	at := strings.TrimPrefix(srv.URL, "http://")
	for _, flags := range []struct{ unknown, drain, passing string }{
		{"fail", "fail", "/up"},
		{"pass", "fail", "/up /undecided /hangs /broken"},
		{"fail", "pass", "/up /drain"},
	} {
		c := checkCmd{Address: at, Timeout: 100 * time.Millisecond, Unknown: flags.unknown, Drain: flags.drain}
		var passing []string
		for _, path := range []string{"/up", "/drain", "/down", "/undecided", "/hangs", "/broken", "/nobody"} {
			if c.ask(t.Context(), path).Passes {
				passing = append(passing, path)
			}
		}
		if got := strings.Join(passing, " "); got != flags.passing {
			t.Errorf("unknown %s, drain %s: %s pass, want %s", flags.unknown, flags.drain, got, flags.passing)
		}
	}
}

// Whom a check is about: its argument, or HAProxy's environment.
func TestCheckSubject(t *testing.T) {
	haproxy := map[string]string{"HAPROXY_PROXY_NAME": "be_main_primary", "HAPROXY_SERVER_NAME": "n1"}
	for _, tt := range []struct {
		args     []string
		env      map[string]string
		path     string
		external bool
	}{
		{[]string{"main/primary/n1"}, nil, "/api/v1/check/main/primary/n1", false},
		{[]string{"main/primary/n2"}, haproxy, "/api/v1/check/main/primary/n2", false}, // the argument counts
		{nil, haproxy, "/api/v1/check/be_main_primary/n1", true},
		{[]string{"NOT_USED", "NOT_USED", "::1", "5432"}, haproxy, "/api/v1/check/be_main_primary/n1", true},
		{nil, map[string]string{"HAPROXY_PROXY_NAME": "a/../b", "HAPROXY_SERVER_NAME": "n1"}, "", false},
		{nil, nil, "", false},
		{nil, map[string]string{"HAPROXY_PROXY_NAME": "x"}, "", false},
		{[]string{"main/n1"}, haproxy, "", false},
		{[]string{"main/primary/.."}, haproxy, "", false},
		{[]string{"a", "b"}, haproxy, "", false},
	} {
		c := checkCmd{Server: tt.args}
		path, external, err := c.subject(func(k string) string { return tt.env[k] })
		if path != tt.path || external != tt.external || (err != nil) != (tt.path == "") {
			t.Errorf("%q with %v: %q %t %v, want %q %t", tt.args, tt.env, path, external, err, tt.path, tt.external)
		}
	}
	for _, tt := range []struct{ args, want []string }{
		{[]string{"/usr/bin/pgsteer", "check", "x"}, []string{"check", "x"}},
		{[]string{"/opt/pgsteer-check", "NOT_USED"}, []string{"check", "NOT_USED"}},
		{[]string{"pgsteer-check"}, []string{"check"}},
	} {
		if diff := cmp.Diff(tt.want, asCheck(tt.args)); diff != "" {
			t.Errorf("%q: %s", tt.args, diff)
		}
	}
}
