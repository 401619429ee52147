package apply

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/systemd/bustest"
)

// ways are those by which others than the master reload HAProxy; does is what the
// reload does beside being called good.
var ways = map[string]func(t *testing.T, b *bench, does func()){
	"unit": func(t *testing.T, b *bench, does func()) {
		t.Helper()
		f := &fakeSystemd{result: "done", state: "active", does: does}
		b.group.Reload, b.group.Unit, b.bus = nil, "haproxy.service", f.serve(t, bustest.Start(t))
	},
	"command": func(_ *testing.T, b *bench, does func()) {
		b.run.reload = func(context.Context) (string, error) {
			does()
			return "", nil
		}
	},
}

// becomes has the master list other processes.
func (m *fakeMaster) becomes(procs string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.procs = procs
}

func (m *fakeMaster) reloads() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// What systemd or a command calls a good reload may have done nothing: after one
// failed reload 3.1 to 3.4 are deaf to the signal (haproxy #3229). The master is then
// asked, once; a reload that was effective, or is still under way, is not done twice.
func TestReloadThatDoesNothing(t *testing.T) {
	for way, set := range ways {
		for _, c := range []struct {
			name, version string
			master        func(m *fakeMaster) // how it stands before
			does          func(m *fakeMaster) // what the reload does to it
			asked         int
			fault         string
		}{
			{name: "effective", version: "3.2", does: func(m *fakeMaster) { m.becomes("show proc, reloaded") }},
			{name: "nothing", version: "3.2", asked: 1},
			{name: "nothing, after a failed one", version: "3.4", master: func(m *fakeMaster) { m.procs = "show proc, failed" }, asked: 1},
			{name: "nothing, old version", version: "2.6", asked: 1},
			{name: "slow", version: "3.2", master: func(m *fakeMaster) {
				m.busy = 1
				m.refused = func() { m.procs = "show proc, reloaded" }
			}, asked: 1},
			{name: "failed", version: "3.2", does: func(m *fakeMaster) { m.becomes("show proc, failed") }, fault: "1 failed reloads"},
			{name: "nothing, and the master's fails", version: "3.2", master: func(m *fakeMaster) { m.fails = true }, asked: 1, fault: "the reload had no effect, and asked itself: HAProxy says that the reload failed"},
		} {
			t.Run(way+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				m, b := newFakeMaster(t, c.version), newBench(t)
				if c.master != nil {
					c.master(m)
				}
				set(t, b, func() {
					if c.does != nil {
						c.does(m)
					}
				})
				b.group.MasterSocket, b.group.Timeout = m.socket, 2*time.Second
				b.write(text("n0"))
				b.nodes("main", "n1")
				b.start()
				defer b.stop()
				eventually(t, "the reload ended", func() bool { s := b.status(); return s.State == StateApplied || s.ReloadsFailed > 0 && s.Error != "" })
				s := b.status()
				if good := c.fault == ""; (s.Reloads == 1 && s.State == StateApplied) != good || !strings.Contains(s.Error, c.fault) {
					t.Errorf("status %+v, want an error with %q", s, c.fault)
				}
				b.wantFile(text(map[bool]string{true: "n1", false: "n0"}[c.fault == ""]))
				if got := m.reloads(); got != c.asked {
					t.Errorf("the master was asked for %d reloads, want %d", got, c.asked)
				}
				b.stop() // before its log is read
				if said := strings.Contains(b.log.String(), "not effective"); said != (c.asked > 0) {
					t.Errorf("that the reload was not effective is said: %t\n%s", said, b.log.String())
				}
			})
		}
	}
}

// fakeAdmin is a HAProxy at its admin socket.
type fakeAdmin struct {
	socket string

	mu   sync.Mutex
	info string // what it answers to everything
}

func newFakeAdmin(t *testing.T) *fakeAdmin {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgs") // short: paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	a := &fakeAdmin{socket: filepath.Join(dir, "a")}
	ln, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			a.mu.Lock()
			_, _ = c.Write([]byte(a.info))
			a.mu.Unlock()
			c.Close()
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait(); os.RemoveAll(dir) })
	return a
}

func (a *fakeAdmin) becomes(pid, uptime, stopping int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info = fmt.Sprintf("Name: HAProxy\nPid: %d\nUptime_sec: %d\nStopping: %d\n\n", pid, uptime, stopping)
}

// Without a master's socket the process at the admin socket tells whether systemd's
// or a command's reload has been; what that socket cannot tell counts as before.
func TestReloadIsSeenAtTheAdminSocket(t *testing.T) {
	for _, c := range []struct {
		name  string
		does  func(a *fakeAdmin)
		other bool // the file binds another path
		mute  bool // nobody answers before
		fault string
	}{
		{name: "effective", does: func(a *fakeAdmin) { a.becomes(8, 0, 0) }},
		{name: "in a container", does: func(a *fakeAdmin) { a.becomes(7, 0, 0) }},
		{name: "nothing", does: func(*fakeAdmin) {}, fault: "process 7 answers"},
		{name: "one that ends already", does: func(a *fakeAdmin) { a.becomes(8, 0, 1) }, fault: "not confirmed"},
		{name: "another HAProxy's socket", does: func(*fakeAdmin) {}, other: true},
		{name: "nobody answers", does: func(*fakeAdmin) {}, mute: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := newFakeAdmin(t), newBench(t)
			if !c.mute {
				a.becomes(7, 60, 0)
			}
			path := a.socket
			if c.other {
				path += "2"
			}
			text := func(node string) string {
				return "global\n  stats socket " + path + " level admin\nlisten l\n  bind 127.0.0.1:1\n  server " + node + " 10.0.0.1:5432\n"
			}
			b.group.Files[0].HAProxy = true
			b.group.Files[0].Template.Text = "global\n  stats socket " + path + " level admin\nlisten l\n  bind 127.0.0.1:1\n{{ range .Clusters }}{{ range (index .Pools 0).Servers }}  server {{ .Name }} {{ hostport . }}\n{{ end }}{{ end }}"
			b.group.AdminSockets, b.group.Timeout = []string{a.socket}, 4*time.Second
			ways["command"](t, b, func() { c.does(a) })
			b.write(text("n0"))
			b.nodes("main", "n1")
			b.start()
			defer b.stop()
			eventually(t, "the reload ended", func() bool {
				s := b.status()
				return s.State == StateApplied || s.ReloadsFailed > 0 && s.Error != ""
			})
			if s := b.status(); (s.State == StateApplied) != (c.fault == "") || !strings.Contains(s.Error, c.fault) {
				t.Errorf("status %+v, want an error with %q", s, c.fault)
			}
			b.wantFile(text(map[bool]string{true: "n1", false: "n0"}[c.fault == ""]))
			b.stop() // before its log is read
			if n := strings.Count(b.log.String(), "without its master's socket"); n != 1 {
				t.Errorf("the missing master's socket is warned of %d times, want once\n%s", n, b.log.String())
			}
		})
	}
}
