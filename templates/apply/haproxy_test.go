package apply

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// findHAProxy returns the program, or skips; a run that must be complete fails.
func findHAProxy(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("haproxy is not installed; run scripts/setup test")
	}
	t.Skip("haproxy is not installed; run scripts/setup test")
	return ""
}

// freePort returns a port that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// eventually waits for a condition of the world outside.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// realBench is a group whose files a real HAProxy in master-worker mode reads.
type realBench struct {
	*bench
	bin, socket string
	port        int
}

const listenerPerServer = `global
  stats socket {{ haproxySocket .Options.StatsSocket }} mode 660 level admin
{{ with index .Vars "global" }}  {{ . }}
{{ end }}defaults
  mode tcp
  timeout connect 1s
  timeout client 1m
  timeout server 1m
listen l
  bind 127.0.0.1:{{ .Vars.port }}
{{ range (index (index .Clusters 0).Pools 0).Servers }}  server {{ haproxyName .Name }} {{ hostport . }}
{{ end }}`

func newRealBench(t *testing.T) *realBench {
	t.Helper()
	b := &realBench{bench: newBench(t), bin: findHAProxy(t), port: freePort(t)}
	dir, err := os.MkdirTemp("", "pgs") // short: paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b.socket = filepath.Join(dir, "m")
	b.group.Files[0].Template.Text = listenerPerServer
	b.group.Settings = render.Settings{
		Options: render.Options{StatsSocket: filepath.Join(dir, "s")},
		Vars:    map[string]string{"port": fmt.Sprint(b.port)},
	}
	b.group.Check = []string{b.bin, "-c", "-f", "{{.Staged}}"}
	b.group.Reload, b.group.MasterSocket = nil, b.socket
	b.group.ReloadInterval, b.group.Timeout = 100*time.Millisecond, 10*time.Second
	return b
}

// serve starts HAProxy on the present file.
func (b *realBench) serve() {
	b.t.Helper()
	cmd := exec.Command(b.bin, "-W", "-S", b.socket, "-f", b.file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if b.t.Failed() {
			b.t.Logf("haproxy said:\n%s", out.String())
		}
	})
	eventually(b.t, "haproxy's master answers", func() bool {
		_, err := master{b.socket}.processes(b.t.Context())
		return err == nil
	})
}

// startReal runs the group with real commands.
func (b *realBench) startReal() {
	b.t.Helper()
	a, err := New(Options{Groups: []Group{b.group}, Views: &b.views, Now: topology.NewTicker(time.Now)})
	if err != nil {
		b.t.Fatal(err)
	}
	b.a = a
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
}

// servers are the names that the running worker has.
func (b *realBench) servers() string {
	answer, _ := master{b.group.Settings.Options.StatsSocket}.ask(b.t.Context(), "show servers state l")
	var names []string
	for line := range strings.Lines(answer) {
		if w := strings.Fields(line); len(w) > 4 && w[1] == "l" {
			names = append(names, w[3])
		}
	}
	return strings.Join(names, " ")
}

func (b *realBench) wantApplied() {
	b.t.Helper()
	eventually(b.t, "applied", func() bool { return b.status().State == StateApplied })
}

func TestRealHAProxy(t *testing.T) {
	b := newRealBench(t)
	b.nodes("main", "n1")
	b.startReal()
	// Nobody runs yet: the checked file stays for the first start.
	eventually(t, "pending", func() bool { return b.status().ReloadsFailed > 0 })
	if s := b.status(); s.State != StatePending || !strings.Contains(s.Error, "does not answer") {
		t.Fatalf("status %+v", s)
	}
	b.serve()
	b.wantApplied()

	b.nodes("main", "n1", "n2")
	eventually(t, "the second server runs", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
	if s := b.status(); s.Reloads != 2 || s.Running != s.Desired {
		t.Errorf("status %+v", s)
	}
}

// A node whose name would add a line to the file is left out; the others run.
func TestRealHAProxyNameWithSyntax(t *testing.T) {
	b := newRealBench(t)
	b.nodes("main", "n1")
	b.startReal()
	eventually(t, "the file is there", func() bool { _, err := os.Stat(b.file); return err == nil })
	b.serve()
	b.wantApplied()
	b.nodes("main", "n9", "x\n  bind 127.0.0.1:1")
	eventually(t, "the new server runs", func() bool { return b.servers() == "n9" })
	b.wantApplied()
	if left := b.status().LeftOut; len(left) != 1 || !strings.Contains(left[0], `x\n  bind`) {
		t.Errorf("left out %q", left)
	}
}

// A reload that fails leaves the last good file on disk and the old worker running.
func TestRealHAProxyUnconfirmed(t *testing.T) {
	b := newRealBench(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b.group.Files[0].Template.Text += `{{ range (index (index .Clusters 0).Pools 0).Servers }}{{ with index .Tags "bind" }}  bind 127.0.0.1:{{ . }}
{{ end }}{{ end }}`
	b.nodes("main", "n1")
	b.startReal()
	eventually(t, "the file is there", func() bool { _, err := os.Stat(b.file); return err == nil })
	b.serve()
	b.wantApplied()
	good, _ := os.ReadFile(b.file)
	failed := b.status().ReloadsFailed

	s := snapshotOf("main", 100, "n1", "n2")
	s.Nodes[1].Tags = map[string]string{"bind": fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)}
	b.views.Set("main", &topology.View{Snapshot: s})
	eventually(t, "the reload failed", func() bool { return b.status().ReloadsFailed > failed })
	if st := b.status(); st.State != StatePending || !strings.Contains(st.Error, "last good files are back") {
		t.Errorf("status %+v", st)
	}
	b.wantFile(string(good))
	eventually(t, "the old worker serves", func() bool { return b.servers() == "n1" })

	taken.Close() // the cause goes away, nothing else changes
	eventually(t, "both servers run", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
}
