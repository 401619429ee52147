package patronitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// shape lists what a JSON value has, by path, with the kind of each.
func shape(path string, v any) map[string]string {
	out := map[string]string{path: fmt.Sprintf("%T", v)}
	switch v := v.(type) {
	case map[string]any:
		for k, below := range v {
			maps.Copy(out, shape(path+"."+k, below))
		}
	case []any:
		for _, below := range v {
			maps.Copy(out, shape(path+"[]", below))
		}
	}
	return out
}

// The bodies in testdata were recorded of a cluster of two on Consul, with
// synchronous_mode; blind is a leader that has lost its store.
func TestShapesAreThoseOfPatroni(t *testing.T) {
	for _, version := range []string{V3, V4} {
		c := New("alpha", "n1", "n2")
		c.Member(func(m *Member) { m.Version = version })
		c.Change(func(s *Store) {
			s.Config = `{"synchronous_mode":true}`
			s.Sync = []string{"n2"}
			e := s.Members["n2"]
			e.Tags = map[string]any{"zone": "b", "nofailover": true, "weight": 10}
			s.Members["n2"] = e
		})
		answer := func(member, path string, wantStatus int) any {
			t.Helper()
			status, body, err := c.Answer(member, path)
			if err != nil || status != wantStatus {
				t.Fatalf("%s %s%s: %d, %v", version, member, path, status, err)
			}
			var v any
			if err := json.Unmarshal(body, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		leader, replica, list := answer("n1", "/leader", 200), answer("n2", "/leader", 503), answer("n1", "/cluster", 200)
		c.Member(func(m *Member) { m.Blind, m.Away = true, true }, "n1")
		blind := answer("n1", "/leader", 200)
		for name, v := range map[string]any{"leader": leader, "replica": replica, "blind": blind, "cluster": list} {
			b, err := os.ReadFile(filepath.Join("testdata", version, name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var recorded any
			if err := json.Unmarshal(b, &recorded); err != nil {
				t.Fatal(err)
			}
			want := shape("", recorded)
			for path, kind := range shape("", v) {
				if want[path] != kind && path != ".xlog.replayed_timestamp" { // null without a transaction
					t.Errorf("%s of %s: %s is %s, in Patroni %q", name, version, path, kind, want[path])
				}
			}
			got := shape("", v)
			for _, path := range []string{".patroni.scope", ".patroni.name", ".cluster_unlocked", ".timeline", ".xlog.location", ".database_system_identifier", ".scope", ".members[].lsn", ".members[].api_url", ".members[].host", ".members[].port", ".members[].tags", ".members[].timeline"} {
				if want[path] != got[path] {
					t.Errorf("%s of %s: %s is %q, in Patroni %q", name, version, path, got[path], want[path])
				}
			}
		}
	}
}

func request(ctx context.Context, c *Cluster, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := c.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestWhatHappensToARequest(t *testing.T) {
	refused := func(_ int, _ string, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
	late := func(_ int, _ string, err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	for _, c := range []struct {
		name string
		url  string
		does func(c *Cluster)
		want func(status int, body string, err error) bool
	}{
		{"nobody is there", "http://x.test:8008/leader", nil, refused},
		{"down", URL("a") + "/leader", func(c *Cluster) { c.Member(func(m *Member) { m.Down = true }) }, refused},
		{"hung", URL("a") + "/leader", func(c *Cluster) { c.Member(func(m *Member) { m.Hung = true }) }, late},
		{"blind, list", URL("a") + "/cluster", func(c *Cluster) { c.Member(func(m *Member) { m.Blind = true }) }, func(_ int, _ string, err error) bool { return errors.Is(err, io.EOF) }},
		{"paused and blind", URL("a") + "/leader", func(c *Cluster) {
			c.Change(func(s *Store) { s.Pause = true })
			c.Member(func(m *Member) { m.Blind, m.Lock = true, false })
		}, func(status int, _ string, _ error) bool { return status == 200 }},
		{"no configuration", URL("a") + "/config", func(c *Cluster) { c.Change(func(s *Store) { s.Config = "" }) }, func(status int, _ string, _ error) bool { return status == 502 }},
		{"history", URL("a") + "/history", nil, func(status int, body string, _ error) bool { return status == 200 && body[0] == '[' }},
		{"the body of any member", URL("b") + "/patroni", nil, func(status int, _ string, _ error) bool { return status == 200 }},
		{"any other path", URL("b") + "/nothing", nil, func(status int, _ string, _ error) bool { return status == 503 }},
		{"scripted status", URL("a") + "/leader", script(Fault{Status: 302, Location: "x"}), func(status int, _ string, _ error) bool { return status == 302 }},
		{"scripted body", URL("a") + "/leader", script(Fault{Body: "x"}), func(status int, body string, _ error) bool { return status == 200 && body == "x" }},
		{"cut", URL("a") + "/leader", script(Fault{Cut: 3}), func(_ int, body string, _ error) bool { return len(body) == 3 }},
		{"error", URL("a") + "/leader", script(Fault{Err: io.ErrUnexpectedEOF}), func(_ int, _ string, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		{"hang", URL("a") + "/leader", script(Fault{Hang: true}), late},
		{"delay", URL("a") + "/leader", script(Fault{Delay: 2 * time.Second}), late},
	} {
		synctest.Test(t, func(t *testing.T) {
			cl := New("alpha", "a", "b")
			if c.does != nil {
				c.does(cl)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if status, body, err := request(ctx, cl, c.url); !c.want(status, body, err) {
				t.Errorf("%s: %d %q %v", c.name, status, body, err)
			}
			if n := len(cl.Requests()); n != 1 {
				t.Errorf("%s: %d requests are noted", c.name, n)
			}
		})
	}
}

func script(f Fault) func(*Cluster) {
	return func(c *Cluster) { c.Script(func(Request) Fault { return f }) }
}

// A frozen member's list is of the time of the freeze; an election leaves one holder.
func TestFreezeAndLead(t *testing.T) {
	c := New("alpha", "a", "b")
	leader := func(member string) string {
		_, body, err := c.Answer(member, "/cluster")
		if err != nil {
			t.Fatal(err)
		}
		var v struct{ Members []struct{ Name, Role string } }
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(v.Members, func(m struct{ Name, Role string }) bool { return m.Role == "leader" })
		return v.Members[i].Name
	}
	c.Freeze("a")
	c.Lead("b")
	if leader("a") != "a" || leader("b") != "b" {
		t.Errorf("a sees %s and b %s", leader("a"), leader("b"))
	}
	c.Thaw("a")
	if leader("a") != "b" {
		t.Errorf("after the thaw a sees %s", leader("a"))
	}
	for member, want := range map[string]int{"a": 503, "b": 200} {
		if status, _, _ := c.Answer(member, "/leader"); status != want {
			t.Errorf("%s says %d", member, status)
		}
	}
}
