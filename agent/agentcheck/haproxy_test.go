package agentcheck

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

const haproxyConfig = `
global
 stats socket %[1]s/admin.sock mode 600 level admin
 max-spread-checks 10ms
defaults
 mode tcp
 timeout connect 1s
 timeout client 1m
 timeout server 1m
 default-server weight 100 agent-check agent-addr 127.0.0.1 agent-port %[2]d agent-inter 20ms
frontend f
 bind unix@%[1]s/f.sock
 default_backend be_main_replica
backend be_main_replica
 balance leastconn
 server n2 127.0.0.1:9 agent-send "main replica n2\n"
backend guard_main_replica
 server g 127.0.0.1:9 agent-send "main replica !guard\n"
`

// startHAProxy runs a real HAProxy that polls a port every 20 ms and returns the
// path of its admin socket.
func startHAProxy(t *testing.T, port int) string {
	t.Helper()
	labtest.Need(t, lab.NeedHAProxy)
	binary, err := lab.HAProxyProgram()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pgsteer") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, fmt.Appendf(nil, haproxyConfig[1:], dir, port), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-db", "-f", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return filepath.Join(dir, "admin.sock")
}

// serverState reads operational state, administrative bits and weight, which
// say what HAProxy made of an answer.
func serverState(socket, backend string) string {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_, _ = io.WriteString(c, "show servers state "+backend+"\n")
	in := bufio.NewScanner(c)
	for in.Scan() {
		if w := strings.Fields(in.Text()); len(w) > 7 && w[1] == backend {
			return fmt.Sprintf("op=%s admin=%s weight=%s", w[5], w[6], w[7])
		}
	}
	return "no such backend"
}

// TestHAProxyObeysEveryAnswer walks one server through every verdict (field
// report FR-18): whatever came before, "up" must bring it back with its weight,
// and nothing administrative may be left behind.
func TestHAProxyObeysEveryAnswer(t *testing.T) {
	w, s, socket := polled(t, Options{})
	healthy := verdict("n2", topology.Up, topology.CodeReplica, "lag 0B")
	weighing := func(weight int, code topology.Code) topology.NodeVerdict {
		v := verdict("n2", topology.Up, code, "lag 70MB > 64MB")
		v.Weight = weight
		return v
	}
	steps := []struct {
		name          string
		verdict       topology.NodeVerdict
		server, guard string
	}{
		{"healthy", healthy, "op=2 admin=0 weight=100", "op=0 admin=0 weight=100"},
		{"maintenance", verdict("n2", topology.Drain, topology.CodeMaintenance, "by hand, #42\nuntil 5"), "op=2 admin=0 weight=0", "op=2 admin=0 weight=100"},
		{"healthy after maintenance", healthy, "op=2 admin=0 weight=100", "op=0 admin=0 weight=100"},
		{"lag", verdict("n2", topology.Drain, topology.CodeLag, "lag 70MB > 64MB"), "op=2 admin=0 weight=0", "op=2 admin=0 weight=100"},
		{"half", weighing(50, topology.CodeLagOverride), "op=2 admin=0 weight=50", "op=0 admin=0 weight=100"},
		{"dead", verdict("n2", topology.Down, topology.CodeRefused, strings.Repeat("connection refused ", 20)), "op=0 admin=0 weight=50", "op=2 admin=0 weight=100"},
		{"undecided keeps what stands", verdict("n2", topology.Undecided, topology.CodeNoEvidence, ""), "op=0 admin=0 weight=50", "op=2 admin=0 weight=100"},
		{"ramping after death", weighing(25, topology.CodeRamping), "op=2 admin=0 weight=25", "op=0 admin=0 weight=100"},
		{"ramping on", weighing(50, topology.CodeRamping), "op=2 admin=0 weight=50", "op=0 admin=0 weight=100"},
		{"healthy after death", healthy, "op=2 admin=0 weight=100", "op=0 admin=0 weight=100"},
		{"not selected any more", verdict("n2", topology.Drain, topology.CodeNotSelected, "not in pool"), "op=2 admin=0 weight=0", "op=2 admin=0 weight=100"},
		{"least weight as fallback", weighing(1, topology.CodeFallback), "op=2 admin=0 weight=1", "op=0 admin=0 weight=100"},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			w.decide(step.verdict)
			if step.verdict.Verdict == topology.Undecided {
				awaitPolls(t, s.Counters().Silent.Load)
			}
			want := []string{step.server, step.guard}
			waitFor(t, want, func() []string {
				return []string{serverState(socket, "be_main_replica"), serverState(socket, "guard_main_replica")}
			})
		})
	}
}

// polled runs a server and a HAProxy that polls it, and returns its admin socket.
func polled(t *testing.T, o Options) (*world, *Server, string) {
	t.Helper()
	w := newWorld()
	s := w.server(t, o)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w, s, startHAProxy(t, ln.Addr().(*net.TCPAddr).Port)
}

// decide makes a verdict the whole of pool main/replica.
func (w *world) decide(v topology.NodeVerdict) {
	snapshot := &topology.Snapshot{Cluster: "main", Complete: true, Pools: []topology.PoolVerdicts{
		{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{v}},
	}}
	w.views.Set("main", &topology.View{Snapshot: snapshot, ValidUntil: 1 << 62})
}

// TestHAProxyAndTheOperator shows who wins when an operator sets a server by hand:
// he does, unless the agent check sends administrative words. Bits of admin: 1 is
// MAINT, 8 is DRAIN (reference of HAProxy's "show servers state").
func TestHAProxyAndTheOperator(t *testing.T) {
	healthy := verdict("n2", topology.Up, topology.CodeReplica, "")
	lagging := verdict("n2", topology.Drain, topology.CodeLag, "lag 70MB > 64MB")
	standby := verdict("n2", topology.Down, topology.CodeWrongRole, "in recovery")
	dead := verdict("n2", topology.Down, topology.CodeRefused, "nobody listens")
	const sv = "set server be_main_replica/n2 "
	steps := []struct {
		name, by      string // what the operator says once the verdict stands
		verdict       topology.NodeVerdict
		never, always string
	}{
		{"healthy", "", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
		{"lag", "", lagging, "op=2 admin=0 weight=0", "op=2 admin=8 weight=100"},
		{"healthy after lag", "", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
		{"a standby is no alarm", "", standby, "op=0 admin=0 weight=100", "op=0 admin=1 weight=100"},
		{"promoted", "", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
		{"a standby again", "", standby, "op=0 admin=0 weight=100", "op=0 admin=1 weight=100"},
		{"lag after a wrong role", "", lagging, "op=2 admin=0 weight=0", "op=2 admin=8 weight=100"},
		{"dead after lag", "", dead, "op=0 admin=0 weight=0", "op=0 admin=0 weight=100"},
		{"healthy after death", "", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
		{"operator's maintenance", sv + "state maint", healthy, "op=0 admin=1 weight=100", "op=2 admin=0 weight=100"},
		{"operator's end of it", sv + "state ready", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
		{"operator's drain", sv + "state drain", healthy, "op=2 admin=8 weight=100", "op=2 admin=0 weight=100"},
		{"operator brings in who is dead", sv + "state ready", dead, "op=0 admin=0 weight=100", "op=0 admin=0 weight=100"},
		{"healthy at last", "", healthy, "op=2 admin=0 weight=100", "op=2 admin=0 weight=100"},
	}
	for name, words := range map[string]AdminWords{"never": AdminNever, "always": AdminAlways} {
		t.Run(name, func(t *testing.T) {
			w, s, socket := polled(t, Options{AdminWords: words})
			for _, step := range steps {
				w.decide(step.verdict)
				polls := func() uint64 { c := s.Counters(); return c.Up.Load() + c.Drain.Load() + c.Down.Load() }
				awaitPolls(t, polls)
				if step.by != "" {
					command(t, socket, step.by)
					awaitPolls(t, polls)
				}
				want := step.never
				if words == AdminAlways {
					want = step.always
				}
				waitFor(t, []string{step.name, want}, func() []string { return []string{step.name, serverState(socket, "be_main_replica")} })
			}
		})
	}
}

// command tells HAProxy something, as an operator does.
func command(t *testing.T, socket, line string) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, line+"\n")
	if b, err := io.ReadAll(c); err != nil || strings.TrimSpace(string(b)) != "" {
		t.Fatalf("%s: %q, %v", line, b, err)
	}
}

// awaitPolls waits until HAProxy has asked some times more: before that an
// unchanged state proves nothing.
func awaitPolls(t *testing.T, answers func() uint64) {
	t.Helper()
	from := answers()
	waitFor(t, []string{"asked"}, func() []string {
		if answers() < from+6 {
			return nil
		}
		return []string{"asked"}
	})
}

// waitFor asks until the answer is the wanted one.
func waitFor(t *testing.T, want []string, ask func() []string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		diff := cmp.Diff(want, ask())
		if diff == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(diff)
		}
	}
}
