package runtimeapi

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// file is what the rig's HAProxy reads at its next reload.
func (r *rig) file(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile(r.haproxy.ConfigFile())
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// bring changes the running HAProxy, and then its file.
func (r *rig) bring(tb testing.TB, change func(text string) string) error {
	tb.Helper()
	before := r.file(tb)
	after := change(before)
	if err := r.pusher.Bring(tb.Context(), []byte(before), []byte(after)); err != nil {
		return err
	}
	return r.haproxy.WriteConfig(after)
}

// withServer adds a server at a port to both pools.
func withServer(name string, port int) func(string) string {
	return func(text string) string {
		for _, pool := range []string{"primary", "replica"} {
			line := fmt.Sprintf(" server %s 127.0.0.1:%d agent-send \"main %s %s\\n\"\n server n1 ", name, port, pool, name)
			head, rest, _ := strings.Cut(text, "backend be_main_"+pool+"\n")
			text = head + "backend be_main_" + pool + "\n" + strings.Replace(rest, " server n1 ", line, 1)
		}
		return text
	}
}

// without removes a server from both pools.
func without(name string) func(string) string {
	return func(text string) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, " server "+name+" ") {
				out.WriteString(line)
			}
		}
		return out.String()
	}
}

// servers are the running servers of the writer's pool that are not in maintenance.
func (r *rig) servers(tb testing.TB) (out []string) {
	tb.Helper()
	state, err := r.haproxy.Command(tb.Context(), "show servers state")
	if err != nil {
		tb.Fatal(err)
	}
	has, err := parseState(state)
	if err != nil {
		tb.Fatal(err)
	}
	for ref, s := range has {
		if ref.Backend == "be_main_primary" && !s.maintenance {
			out = append(out, ref.Server+"="+s.address.String())
		}
	}
	slices.Sort(out)
	return out
}

func TestHAProxyServersChangeWithoutReload(t *testing.T) {
	r := newRig(t)
	worker := func() string { return r.pusher.Status()[0].Process }
	r.nameOf(1, "n1", 2)
	eventually(t, time.Second, r.servedBy(t, "n1"))
	began, stays := worker(), first(r.connect(t))

	n3 := greet(t, "n3")
	if err := r.bring(t, withServer("n3", n3)); err != nil {
		t.Fatal("add:", err)
	}
	wantAlive(t, stays, 50*time.Millisecond)
	if err := r.servedBy(t, "n1")(); err != nil {
		t.Error("a new server serves unasked:", err)
	}
	r.nameOf(2, "n3", 3)
	eventually(t, time.Second, r.servedBy(t, "n3"))
	wantEnd(t, stays, "the session of the lost writer")

	moved, old := greet(t, "moved"), first(r.connect(t))
	if err := r.bring(t, func(s string) string { return strings.ReplaceAll(s, fmt.Sprint(n3), fmt.Sprint(moved)) }); err != nil {
		t.Fatal("move:", err)
	}
	wantEnd(t, old, "the session with the old address")
	eventually(t, time.Second, r.servedBy(t, "moved"))

	last := first(r.connect(t))
	r.nameOf(3, "n2", 2)
	if err := r.bring(t, without("n3")); err != nil {
		t.Fatal("remove:", err)
	}
	wantEnd(t, last, "the session of a server that left")
	eventually(t, time.Second, r.servedBy(t, "n2"))
	if err := r.bring(t, withServer("n3", n3)); err != nil {
		t.Fatal("back again:", err)
	}
	r.nameOf(4, "n3", 3)
	eventually(t, time.Second, r.servedBy(t, "n3"))

	if now := worker(); now != began {
		t.Errorf("HAProxy's process is %s, was %s: it was reloaded", now, began)
	}
	running := r.servers(t)
	r.reload(t, 0)
	if diff := cmp.Diff(running, r.servers(t)); diff != "" {
		t.Error("the file and what ran before its reload differ:", diff)
	}
	eventually(t, 2*time.Second, r.servedBy(t, "n3"))
}

// A server that is new, or at a new address, is down until somebody speaks of it,
// and sessions with the old address end in pools that end none by themselves.
func TestHAProxyServersWaitForAWord(t *testing.T) {
	r := newRig(t) // its pusher says nothing: there is no view
	status := func(ref string) string {
		out, err := r.haproxy.Command(t.Context(), "show stat be_main_replica 4 -1")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if f := strings.Split(line, ","); len(f) > 17 && f[1] == ref {
				return f[17]
			}
		}
		return ""
	}
	for _, what := range []string{"a new server", "one that was there before"} {
		if err := r.bring(t, withServer("n3", greet(t, "n3"))); err != nil {
			t.Fatal(err)
		}
		if got := status("n3"); got != "DOWN (agent)" {
			t.Errorf("%s is %q", what, got)
		}
		if err := r.bring(t, without("n3")); err != nil {
			t.Fatal(err)
		}
		if got := status("n3"); got != "MAINT" {
			t.Errorf("a server that left is %q", got)
		}
	}
	var report net.Conn
	eventually(t, 5*time.Second, func() error {
		c, name := session(t, r.reads)
		if report = c; name != "n1" {
			return fmt.Errorf("served by %q", name)
		}
		return nil
	})
	moved := fmt.Sprintf("n1 127.0.0.1:%d", greet(t, "n1"))
	if err := r.bring(t, func(s string) string { return regexp.MustCompile(`n1 127.0.0.1:\d+`).ReplaceAllString(s, moved) }); err != nil {
		t.Fatal(err)
	}
	if got := status("n1"); got != "DOWN (agent)" {
		t.Errorf("a moved server is %q", got)
	}
	wantEnd(t, report, "a session with the old address")
}

// What cannot be done, or is not certain to be done, is an error: HAProxy is to be
// reloaded. Nothing that was asked for shows before.
func TestHAProxyServersThatNeedAReload(t *testing.T) {
	r := newRig(t)
	r.name(1, "n1")
	eventually(t, time.Second, r.servedBy(t, "n1"))
	session := first(r.connect(t))
	for name, change := range map[string]func(string) string{
		"a setting": func(s string) string { return strings.Replace(s, "weight 100", "weight 99", 1) },
		"a server without agent": func(s string) string {
			return strings.Replace(s, "backend guard_main_primary\n", "backend guard_main_primary\n server x 127.0.0.1:9 no-agent-check\n", 1)
		},
		"a keyword that only files take": func(s string) string {
			return strings.Replace(withServer("n3", 9)(s), "primary n3\\n\"", "primary n3\\n\" resolvers r", 1)
		},
	} {
		if err := r.bring(t, change); err == nil {
			t.Errorf("%s: changed without a reload", name)
		} else {
			t.Log(name, err)
		}
	}
	// The running HAProxy is not what the caller takes it for.
	if _, err := r.haproxy.Command(t.Context(), "set server be_main_primary/n2 addr 127.0.0.9"); err != nil {
		t.Fatal(err)
	}
	if err := r.bring(t, withServer("n4", 9)); err == nil || !strings.Contains(err.Error(), "n2 is at 127.0.0.9") {
		t.Errorf("another address than the file's: %v", err)
	}
	wantAlive(t, session, 50*time.Millisecond)
	eventually(t, time.Second, r.servedBy(t, "n1"))
}

// A server that leaves stays out, though its agent's answer is under way with the word
// that ends a maintenance.
func TestServerLeavesDespiteAnAnswerUnderWay(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, _ *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		text := "defaults\n mode tcp\nbackend be_main_replica\n"
		for i := range 5 {
			text += fmt.Sprintf(" server n%d 10.0.0.%d:5432 check agent-check\n", i+1, i+1)
		}
		f.set(func() { f.ready = map[string]bool{"be_main_replica/n5": true} })
		if err := p.Bring(context.Background(), []byte(text), []byte(without("n5")(text))); err != nil {
			t.Error("HAProxy would be reloaded:", err)
		}
	})
}

func first(c net.Conn, _ string) net.Conn { return c }
