package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

// TestExternalCheck has a real HAProxy run `pgsteer check`: it follows the writer;
// an agent that hangs fails the check, and no process is left behind, whether our
// deadline ends the check or HAProxy's SIGTERM does.
func TestExternalCheck(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedHAProxy)
	n1, n2 := scripted(t, writerProbe), scripted(t, standbyProbe)
	sock := l.SocketPath("check.sock")
	dir := t.TempDir()
	agent := startAgent(t, dir, sock, n1.addr, n2.addr)
	// HAProxy runs its checks as another user, who may read the lab's folder only.
	check, user := filepath.Join(l.Dir(), "check"), ""
	program := filepath.Join(l.Dir(), checkProgram)
	if os.Getuid() == 0 {
		user = "user nobody"
	}
	copyOfThis(t, program)
	wrap(t, check, program, "--address "+sock)
	h, err := l.HAProxy(t.Context(), lab.HAProxyOptions{Config: fmt.Sprintf(externalConfig, user, check, n1.addr, n2.addr)})
	if err != nil {
		t.Fatal(err)
	}
	statuses := func() string {
		out, err := h.Command(t.Context(), "show stat")
		if err != nil {
			return err.Error()
		}
		rows, _ := csv.NewReader(strings.NewReader(strings.TrimPrefix(out, "# "))).ReadAll()
		var got []string
		for _, r := range rows {
			if len(r) > 36 && r[0] == "be_main_primary" && r[1] != "BACKEND" {
				got = append(got, strings.Fields(r[17])[0]+" "+strings.TrimPrefix(r[36], "* "))
			}
		}
		return strings.Join(got, ", ")
	}
	await(t, "UP PROCOK, DOWN PROCERR", statuses)
	n1.Set(func(s *pgtest.State) { s.Probe = standbyProbe })
	n2.Set(func(s *pgtest.State) { s.Probe = writerProbe })
	await(t, "DOWN PROCERR, UP PROCOK", statuses)

	if err := agent.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Signal(syscall.SIGCONT) }()
	await(t, "DOWN PROCERR, DOWN PROCERR", statuses) // our deadline is the shorter one
	wrap(t, check, program, "--timeout 1h --address "+sock)
	await(t, "DOWN PROCTOUT, DOWN PROCTOUT", statuses) // HAProxy's SIGTERM
	for _, server := range []string{"n1", "n2"} {      // no further check begins
		if out, err := h.Command(t.Context(), "disable health be_main_primary/"+server); err != nil || strings.TrimSpace(out) != "" {
			t.Fatalf("%s: %q, %v", server, out, err)
		}
	}
	await(t, "", func() string { return withArgument(t, "--address\x00"+sock) })
}

// TestConsulScriptCheck has a real Consul run `pgsteer check`.
func TestConsulScriptCheck(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	n1, n2 := scripted(t, writerProbe), scripted(t, standbyProbe)
	sock := l.SocketPath("check.sock")
	startAgent(t, t.TempDir(), sock, n1.addr, n2.addr)
	c, err := l.ConsulWith(t.Context(), lab.ConsulOptions{ScriptChecks: true})
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("pgsteer")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"n1", "n2"} {
		body := fmt.Sprintf(`{"Name": %q, "Args": [%q, "check", "main/primary/%s", "--address", %q, "--code", "2"], "Interval": "1s", "Timeout": "5s"}`, n, program, n, sock)
		if _, err := c.API(t.Context(), "PUT", "agent/check/register", body); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "n1 passing, n2 critical, fails: main/primary/n2 is down: wrong_role", func() string {
		out, err := c.API(t.Context(), "GET", "agent/checks", "")
		if err != nil {
			return err.Error()
		}
		var checks map[string]struct{ Status, Output string }
		if err := json.Unmarshal([]byte(out), &checks); err != nil {
			return err.Error()
		}
		said, _, _ := strings.Cut(checks["n2"].Output, ",")
		return fmt.Sprintf("n1 %s, n2 %s, %s", checks["n1"].Status, checks["n2"].Status, said)
	})
}

const externalConfig = `
global
  external-check
  insecure-fork-wanted
  %s
  stats socket @ADMIN_SOCKET@ mode 600 level admin
defaults
  mode tcp
  timeout connect 1s
  timeout client 1m
  timeout server 1m
listen front
  bind unix@@DIR@/front.sock
  default_backend be_main_primary
backend be_main_primary
  option external-check
  external-check command %s
  default-server check inter 700ms fall 1 rise 1
  server n1 %s
  server n2 %s
`

// copyOfThis copies the program under test.
func copyOfThis(t *testing.T, path string) {
	t.Helper()
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(this)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
}

// wrap writes the command that HAProxy runs, which gives it no arguments.
func wrap(t *testing.T, path, program, flags string) {
	t.Helper()
	// The race detector waits for a second before it lets a program end well.
	text := "#!/bin/sh\nGORACE=atexit_sleep_ms=0 exec " + program + " --timeout 200ms " + flags + " \"$@\"\n"
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func startAgent(t *testing.T, dir, sock, n1, n2 string) *os.Process {
	t.Helper()
	program, err := exec.LookPath("pgsteer")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pgsteer.yaml")
	text := fmt.Sprintf("state_dir: %s\nlisten: {agent_check: off, health: off, status: off, xds: off, socket: %s}\n"+
		"postgres: {user: probe, sslmode: disable}\nclusters: {main: {nodes: {n1: %q, n2: %q}}}\n", dir, sock, n1, n2)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "run", "-c", file)
	c.Stderr = t.Output()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("the agent ended with %v", err)
		}
	})
	return c.Process
}

var (
	writerProbe  = topology.Probe{InRecovery: topology.No, ReadOnly: topology.No, SystemID: 7, Timeline: 1, WriteLSN: 100}
	standbyProbe = topology.Probe{
		InRecovery: topology.Yes, ReadOnly: topology.Yes, SystemID: 7, Timeline: 1, ReplayLSN: 100, Upstream: topology.Yes,
		Receiver: topology.Receiver{Running: topology.Yes, Streaming: topology.Yes, Timeline: 1, LatestEnd: 100},
	}
)

// scriptedNode is a scripted PostgreSQL and where it listens.
type scriptedNode struct {
	*pgtest.Server
	addr string
}

func scripted(t *testing.T, p topology.Probe) scriptedNode {
	t.Helper()
	s := pgtest.New(pgtest.State{Probe: p})
	addr, stop, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return scriptedNode{s, addr}
}

// await asks until the answer is the wanted one.
func await(t *testing.T, want string, ask func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var got string
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if got = ask(); got == want {
			return
		}
	}
	t.Fatalf("got %q, want %q", got, want)
}

// withArgument lists the processes whose command line holds a text.
func withArgument(t *testing.T, text string) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Skip("there is no /proc here, so left processes cannot be found")
	}
	var found []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return strings.Join(found, "\n")
}
