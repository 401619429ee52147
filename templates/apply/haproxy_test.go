package apply

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/templates/render"
)

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
	lab     *lab.Lab
	haproxy *lab.HAProxy
	args    []string // of HAProxy, beside those of the lab
}

const listenerPerServer = `global
  stats socket {{ haproxySocket .Options.StatsSocket }} mode 660 level admin
{{ range (index (index .Clusters 0).Pools 0).Servers }}{{ with index .Tags "chroot" }}  chroot {{ . }}
{{ end }}{{ end }}defaults
  mode tcp
  timeout connect 1s
  timeout client 1m
  timeout server 1m
listen l
  bind {{ .Vars.bind }}
{{ range (index (index .Clusters 0).Pools 0).Servers }}  server {{ haproxyName .Name }} {{ hostport . }}
{{ end }}`

func newRealBench(t *testing.T) *realBench {
	t.Helper()
	b := &realBench{bench: newBench(t), lab: labtest.ForTest(t, lab.NeedHAProxy)}
	bin, err := lab.HAProxyProgram()
	if err != nil {
		t.Fatal(err)
	}
	addr, err := b.lab.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	b.group.Files[0].Template.Text = listenerPerServer
	b.group.Settings = render.Settings{
		Options: render.Options{StatsSocket: b.lab.SocketPath("admin.sock")},
		Vars:    map[string]string{"bind": addr},
	}
	b.group.Check = []string{bin, "-c", "-f", "{{.Staged}}"}
	b.group.Reload, b.group.MasterSocket = nil, b.lab.SocketPath("haproxy-master.sock")
	b.group.ReloadInterval, b.group.Timeout = 100*time.Millisecond, 10*time.Second
	return b
}

// serve starts HAProxy on the present file.
func (b *realBench) serve() {
	b.t.Helper()
	o := lab.HAProxyOptions{ConfigFile: b.file, AdminSocket: b.group.Settings.Options.StatsSocket, Args: b.args}
	h, err := b.lab.HAProxy(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.haproxy = h
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

// A chroot that is missing passes the check, and up to 3.0 the reload ends every
// process (haproxy #2784). Whoever starts HAProxy anew meets the last good file.
func TestRealHAProxyEnds(t *testing.T) {
	b := newRealBench(t)
	b.nodes("main", "n1")
	b.startReal()
	eventually(t, "the file is there", func() bool { _, err := os.Stat(b.file); return err == nil })
	b.serve()
	b.wantApplied()
	good, _ := os.ReadFile(b.file)
	failed := b.status().ReloadsFailed

	s := snapshotOf("main", 100, "n1", "n2")
	s.Nodes[1].Tags = map[string]string{"chroot": filepath.Join(t.TempDir(), "missing")}
	b.views.Set("main", &topology.View{Snapshot: s})
	eventually(t, "the reload failed", func() bool { return b.status().ReloadsFailed > failed })
	if st := b.status(); st.State != StatePending || !strings.Contains(st.Error, "last good files are back") {
		t.Errorf("status %+v", st)
	}
	b.wantFile(string(good))
	if b.haproxy.PID() == 0 { // else the version keeps the old worker
		if err := b.haproxy.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "HAProxy serves", func() bool { return b.servers() == "n1" })
}

// A reload that does nothing, such as one that a container swallows, is made good over
// the master's socket.
func TestRealHAProxyReloadWithoutEffect(t *testing.T) {
	b := newRealBench(t)
	b.group.Reload, b.group.Timeout = []string{"true"}, 4*time.Second
	b.nodes("main", "n1")
	b.startReal()
	eventually(t, "the file is there", func() bool { _, err := os.Stat(b.file); return err == nil })
	b.serve()
	b.wantApplied()
	b.nodes("main", "n1", "n2")
	eventually(t, "the second server runs", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
}

// Without a master's socket a reload by signal is seen at the admin socket, and one
// that does nothing is not called good.
func TestRealHAProxyReloadSeenAtTheAdminSocket(t *testing.T) {
	b := newRealBench(t)
	reload := filepath.Join(t.TempDir(), "reload")
	b.group.Files[0].HAProxy, b.group.AdminSockets = true, []string{b.group.Settings.Options.StatsSocket}
	b.group.MasterSocket, b.group.Reload, b.group.Timeout = "", []string{"sh", reload}, 3*time.Second
	does := func(what string) {
		if err := os.WriteFile(reload, []byte(what+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	does("true")
	b.nodes("main", "n1")
	b.startReal()
	b.wantApplied() // nobody runs who could be asked
	b.serve()
	good, _ := os.ReadFile(b.file)
	b.nodes("main", "n1", "n2")
	eventually(t, "it is no good reload", func() bool { return b.status().ReloadsFailed > 0 })
	b.wantFile(string(good))
	does(fmt.Sprintf("kill -USR2 %d", b.haproxy.PID()))
	eventually(t, "the second server runs", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
}
