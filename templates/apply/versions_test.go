package apply

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli/haproxytest"
)

// Of every version, the exit code of -c alone says whether a file is used.
func TestCheckOfEveryVersion(t *testing.T) {
	for _, version := range haproxytest.Versions(t) {
		for kind, want := range map[string]State{"valid": StateApplied, "broken": StateRejected, "empty": StateRejected} {
			synctest.Test(t, func(t *testing.T) {
				output, code := haproxytest.Check(t, version, kind)
				b := newBench(t)
				b.run.check = func(string) (string, error) {
					if code == 0 {
						return output, nil
					}
					return output, &ExitError{Code: code}
				}
				b.nodes("main", "n1")
				b.start()
				defer b.stop()
				b.after(10 * time.Second)
				if s := b.status(); s.State != want || want == StateRejected && s.LastOutput != output {
					t.Errorf("%s, %s: %s %q, want %s", version, kind, s.State, s.LastOutput, want)
				}
			})
		}
	}
}

// fakeMaster is a master process that answers as a version does.
type fakeMaster struct {
	t       *testing.T
	version string
	socket  string
	fails   bool
	ln      net.Listener

	mu    sync.Mutex
	dies  bool // a reload ends it
	busy  int  // reloads that it refuses since another one goes on
	asked int  // reloads that were asked for
	// refused is what happens when one is refused; nil: nothing.
	refused func()
	procs   string // the answer to "show proc"
}

func newFakeMaster(t *testing.T, version string) *fakeMaster {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgs") // short: paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	m := &fakeMaster{t: t, version: version, socket: filepath.Join(dir, "m"), procs: "show proc"}
	ln, err := net.Listen("unix", m.socket)
	if err != nil {
		t.Fatal(err)
	}
	m.ln = ln
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			_, _ = c.Write([]byte(m.answer(strings.TrimSpace(line))))
			c.Close()
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait(); os.RemoveAll(dir) })
	return m
}

func (m *fakeMaster) answer(command string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	to := m.procs
	if command == "reload" {
		m.asked++
		switch {
		case m.busy > 0:
			m.busy--
			if m.refused != nil {
				m.refused()
			}
			to = "reload, busy"
		case m.dies:
			m.ln.Close()
			return ""
		case m.fails:
			to, m.procs = "reload, failed", "show proc, failed"
		default:
			to, m.procs = "reload", "show proc, reloaded"
		}
	}
	text, _ := haproxytest.Answer(m.t, m.version, to)
	return text
}

// reload reloads and confirms, as a group does.
func (m *fakeMaster) reload(ctx context.Context) error {
	at := master{m.socket}
	before, err := at.processes(ctx)
	if err != nil {
		return err
	}
	if _, err := at.reload(ctx); err != nil {
		return err
	}
	return at.confirm(ctx, before, 0)
}

// A reload of every version counts once a new worker is there. That it failed is
// seen in what the version tells of it: nothing, a count, or a word.
func TestReloadOfEveryVersion(t *testing.T) {
	for _, version := range haproxytest.Versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			if err := newFakeMaster(t, version).reload(t.Context()); err != nil {
				t.Error(err)
			}
			m := newFakeMaster(t, version)
			m.fails = true
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			want := map[string]string{"2.2": "no new worker has appeared", "2.4": "no new worker has appeared", "2.6": "1 failed reloads"}[version]
			if want == "" {
				want = "says that the reload failed"
			}
			if err := m.reload(ctx); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a reload that failed: %v, want %q", err, want)
			}
		})
	}
}

// A reload that is refused because another one goes on is no fault of the files.
func TestReloadWhileAnotherGoesOn(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.2", "3.4"} {
		m := newFakeMaster(t, version)
		m.busy = 3
		if err := m.reload(t.Context()); err != nil {
			t.Errorf("%s: %v", version, err)
		}
		m = newFakeMaster(t, version)
		m.busy = 1 << 30
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		if err := m.reload(ctx); err == nil || !strings.Contains(err.Error(), "busy with another reload") {
			t.Errorf("%s, always busy: %v", version, err)
		}
	}
}

// Nobody at the socket is told apart from a reload that failed.
func TestReloadWithoutHAProxy(t *testing.T) {
	if _, err := (master{filepath.Join(t.TempDir(), "m")}).reload(t.Context()); !errors.Is(err, errNotRunning) {
		t.Errorf("%v, want that HAProxy does not run", err)
	}
}

// A reload that ends HAProxy's master (2.8.0 when a port is taken, commit d76fa3753)
// leaves the last good file for its next start, also while nobody runs, and is not
// repeated as other failures are: that would end it again and again.
func TestReloadThatEndsHAProxy(t *testing.T) {
	t.Parallel()
	m, b := newFakeMaster(t, "2.8"), newBench(t)
	b.group.Reload, b.group.MasterSocket = nil, m.socket
	b.group.Timeout, b.group.ReloadInterval = time.Second, time.Millisecond
	b.nodes("main", "n1")
	b.start()
	defer b.stop()
	eventually(t, "applied", func() bool { return b.status().Reloads == 1 && b.status().State == StateApplied })

	m.mu.Lock()
	m.dies = true
	m.mu.Unlock()
	b.nodes("main", "n1", "n2")
	eventually(t, "the reload failed", func() bool { return b.status().ReloadsFailed == 1 && b.status().Error != "" })
	b.wantFile(text("n1"))
	if s := b.status(); s.State != StatePending || !strings.Contains(s.Error, "has ended in the reload") || time.Until(s.NextTry) < endedPause/2 {
		t.Errorf("status %+v", s)
	}
	b.a.Retry() // nobody runs now
	eventually(t, "it failed again", func() bool { return b.status().ReloadsFailed == 2 })
	b.wantFile(text("n1"))
}
