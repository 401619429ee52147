package apply

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// alone is a loopback address on which other tests take no port.
const alone = "127.77.0.2:0"

// bindByTag adds a bind to the last section for each node that has one as its tag.
const bindByTag = `{{ range (index (index .Clusters 0).Pools 0).Servers }}{{ with index .Tags "bind" }}  bind {{ . }}
{{ end }}{{ end }}`

// serving is a real HAProxy that runs on a file with one node; the group has a
// preflight and has not reloaded since.
func serving(t *testing.T, prepare func(*realBench)) *realBench {
	t.Helper()
	b := newRealBench(t)
	b.group.Preflight = true
	if prepare != nil {
		prepare(b)
	}
	b.nodes("main", "n1")
	b.startReal()
	eventually(t, "the file is there", func() bool { _, err := os.Stat(b.file); return err == nil })
	b.serve()
	b.wantApplied()
	return b
}

// wantRefused waits for a refusal by the preflight: nothing was reloaded, HAProxy
// and the file are as before.
func (b *realBench) wantRefused(before Status, file string, says ...string) {
	b.t.Helper()
	eventually(b.t, "refused", func() bool { return b.status().State == StateRejected })
	s := b.status()
	for _, want := range says {
		if !strings.Contains(s.Error, want) {
			b.t.Errorf("error %q does not say %q", s.Error, want)
		}
	}
	if s.Reloads != before.Reloads || s.ReloadsFailed != before.ReloadsFailed || s.Refused[RefusedPreflight] != before.Refused[RefusedPreflight]+1 || s.NextTry.IsZero() {
		b.t.Errorf("status %+v, before %+v", s, before)
	}
	b.wantFile(file)
	if got := b.servers(); got != "n1" {
		b.t.Errorf("HAProxy has the servers %q", got)
	}
}

// A port that another program has is found before the reload; once it is free the
// file goes in, although HAProxy has all its other ports itself.
func TestRealHAProxyTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", alone)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b := serving(t, func(b *realBench) { b.group.Files[0].Template.Text += bindByTag })
	good, _ := os.ReadFile(b.file)
	before := b.status()

	s := snapshotOf("main", 100, "n1", "n2")
	s.Nodes[1].Tags = map[string]string{"bind": taken.Addr().String()}
	b.views.Set("main", &topology.View{Snapshot: s})
	b.wantRefused(before, string(good), b.file+":12: bind "+taken.Addr().String(), "EADDRINUSE", "ss -ltnp")
	if refused, err := os.ReadFile(beside(b.file, endRejected)); err != nil || !strings.Contains(string(refused), taken.Addr().String()) {
		t.Errorf("the copy of the refused file: %q, %v", refused, err)
	}

	_ = taken.Close()
	eventually(t, "both servers run", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
	if s := b.status(); s.Reloads != before.Reloads+1 || s.ReloadsFailed != before.ReloadsFailed {
		t.Errorf("status %+v, before %+v", s, before)
	}
	if c, err := net.DialTimeout("tcp", taken.Addr().String(), time.Second); err != nil {
		t.Errorf("the new bind: %v", err)
	} else {
		_ = c.Close()
	}
}

// A port that HAProxy has given up and gets back is free, although a session that came
// in there lives on in an old worker.
func TestRealHAProxyPortComesBack(t *testing.T) {
	node, err := net.Listen("tcp", alone) // lets clients in and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	free, err := net.Listen("tcp", alone)
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	b := serving(t, func(b *realBench) { b.group.Files[0].Template.Text += bindByTag })
	show := func(generation uint64, tags map[string]string) {
		s := snapshotOf("main", generation, "n1", fmt.Sprintf("n%d", generation))
		for i := range s.Nodes {
			s.Nodes[i].Address = topology.Address{Host: "127.77.0.2", Port: uint16(node.Addr().(*net.TCPAddr).Port)}
		}
		s.Nodes[1].Tags = tags
		b.views.Set("main", &topology.View{Snapshot: s})
		eventually(t, "the file is live", func() bool { return b.servers() == fmt.Sprintf("n1 n%d", generation) })
		b.wantApplied()
	}
	show(100, map[string]string{"bind": free.Addr().String()})
	client, err := net.DialTimeout("tcp", free.Addr().String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	through, err := node.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer through.Close()
	show(101, nil)
	show(102, map[string]string{"bind": free.Addr().String()})
	if s := b.status(); s.Refused[RefusedPreflight] != 0 || s.OldProcesses == 0 {
		t.Errorf("status %+v, want no refusal, and an old worker", s)
	}
}

// A chroot that is missing ends 2.6 to 3.0 in the reload (haproxy #2784), whichever
// of HAProxy's files has it.
func TestRealHAProxyMissingChroot(t *testing.T) {
	var other string
	b := serving(t, func(b *realBench) {
		other = filepath.Join(t.TempDir(), "other.cfg")
		if err := os.WriteFile(other, []byte("global\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.group.Check = append([]string{b.group.Check[0], "-c", "-f", other}, b.group.Check[2:]...)
		b.args = []string{"-f", other}
	})
	good, _ := os.ReadFile(b.file)
	before, pid := b.status(), b.haproxy.PID()
	if err := os.WriteFile(other, []byte("global\n  chroot /nowhere/at/all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.nodes("main", "n1", "n2")
	b.wantRefused(before, string(good), other+":2: chroot /nowhere/at/all")
	if now := b.haproxy.PID(); now != pid {
		t.Errorf("HAProxy was process %d and is %d", pid, now)
	}
	if err := os.WriteFile(other, []byte("global\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.a.Retry()
	eventually(t, "both servers run", func() bool { return b.servers() == "n1 n2" })
	b.wantApplied()
}

// A reload that was not confirmed may have worked all the same: the port that HAProxy
// then has is not tried, by this run of pgsteer and by the next.
func TestPreflightAfterAnUnconfirmedReload(t *testing.T) {
	own, err := net.Listen("tcp", alone)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Preflight = true
		b.group.Files[0].Template.Text = "listen l\n bind {{ .Vars.bind }}\n" + oneLinePerServer
		b.group.Settings = render.Settings{Vars: map[string]string{"bind": own.Addr().String()}}
		b.write("listen l\n bind 127.77.0.2:1\n")
		b.nodes("main", "n1")
		b.start()
		b.after(time.Second)
		if s := b.status(); s.State != StateRejected || !strings.Contains(s.Error, "EADDRINUSE") {
			t.Fatalf("before any reload: status %+v", s)
		}
		// From here on the port is HAProxy's: it was free when it was tried.
		free, err := net.Listen("tcp", alone)
		if err != nil {
			t.Fatal(err)
		}
		b.stop()
		_ = free.Close()
		b.group.Settings.Vars["bind"] = free.Addr().String()
		b.run.set(func() {
			b.run.reload = func(context.Context) (string, error) {
				if free, err = net.Listen("tcp", free.Addr().String()); err != nil {
					return "", err
				}
				b.run.set(func() { b.run.reload = func(context.Context) (string, error) { return "", errors.New("late") } })
				return "", errors.New("too late")
			}
		})
		b.start()
		b.after(10 * time.Second)
		defer func() { _ = free.Close() }()
		if s := b.status(); s.State != StatePending || s.ReloadsFailed < 2 {
			t.Fatalf("after the reloads: status %+v", s)
		}
		b.stop()
		b.run.set(func() { b.run.reload = nil })
		b.start()
		b.after(time.Second)
		b.wantState(StateApplied)
		b.wantFile(fmt.Sprintf("listen l\n bind %s\n%s", free.Addr(), text("n1")))
		b.stop()
	})
}

// A first file is put in place whatever HAProxy has, by files that are not known. And
// when somebody else writes over it, what ran last is still what HAProxy has.
func TestPreflightKnowsWhatRan(t *testing.T) {
	own, err := net.Listen("tcp", alone)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close() // HAProxy's
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Preflight = true
		b.group.Files[0].Template.Text = "listen l\n bind {{ .Vars.bind }}\n" + oneLinePerServer
		b.group.Settings = render.Settings{Vars: map[string]string{"bind": own.Addr().String()}}
		b.nodes("main", "n1")
		b.start()
		b.after(time.Second)
		b.wantState(StateApplied)

		b.write("somebody's\n")
		b.nodes("main", "n1", "n2")
		b.after(10 * time.Second)
		b.wantState(StateApplied)
		b.stop()

		b.write("somebody's\n")
		b.nodes("main", "n1", "n2", "n3")
		b.start()
		b.after(time.Second)
		b.wantState(StateApplied)
		b.stop()
	})
}
