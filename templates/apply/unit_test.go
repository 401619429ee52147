package apply

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/pgsteer/pgsteer/agent/systemd/bustest"
)

// fakeSystemd is the part of org.freedesktop.systemd1 that a reload needs.
type fakeSystemd struct {
	conn   *godbus.Conn
	refuse string      // name of the error that ReloadUnit gives
	result string      // of the job; "" never ends
	state  string      // ActiveState
	asked  chan string // gets what ReloadUnit was called with
	does   func()      // what the reload does; nil: nothing
}

const (
	managerPath  = "/org/freedesktop/systemd1"
	managerIface = "org.freedesktop.systemd1.Manager"
)

// Subscribe is called by every client.
func (f *fakeSystemd) Subscribe() *godbus.Error { return nil }

// ReloadUnit queues a job and ends it.
func (f *fakeSystemd) ReloadUnit(name, mode string) (godbus.ObjectPath, *godbus.Error) {
	f.asked <- name + " " + mode
	if f.refuse != "" {
		return "", godbus.NewError(f.refuse, []any{"refused by the test"})
	}
	if f.does != nil {
		f.does()
	}
	const job = godbus.ObjectPath(managerPath + "/job/7")
	if f.result != "" {
		go f.conn.Emit(managerPath, managerIface+".JobRemoved", uint32(7), job, name, f.result)
	}
	return job, nil
}

// Get answers for the property ActiveState of any unit.
func (f *fakeSystemd) Get(string, string) (godbus.Variant, *godbus.Error) {
	return godbus.MakeVariant(f.state), nil
}

// serve puts the fake on a bus; connect opens it as a client does.
func (f *fakeSystemd) serve(t *testing.T, address string) Bus {
	t.Helper()
	open := func(ctx context.Context) (*godbus.Conn, error) {
		return godbus.Connect(address, godbus.WithContext(ctx))
	}
	conn, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	f.conn, f.asked = conn, make(chan string, 9)
	err = errors.Join(
		conn.Export(f, managerPath, managerIface),
		conn.Export(f, "/org/freedesktop/systemd1/unit/haproxy_2eservice", "org.freedesktop.DBus.Properties"),
	)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := conn.RequestName("org.freedesktop.systemd1", godbus.NameFlagDoNotQueue); err != nil || r != godbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("the fake could not take its name: %v, %v", r, err)
	}
	return func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) { return open(ctx) })
	}
}

func TestUnitIsReloadedOverDBus(t *testing.T) {
	for _, c := range []struct {
		name    string
		systemd fakeSystemd
		fault   string
		stopped bool
	}{
		{name: "good", systemd: fakeSystemd{result: "done", state: "active"}},
		{name: "the job failed", systemd: fakeSystemd{result: "failed", state: "active"}, fault: `ended as "failed"`},
		{name: "the unit is gone after it", systemd: fakeSystemd{result: "done", state: "failed"}, fault: `is "failed", not active`},
		{name: "the job never ends", systemd: fakeSystemd{state: "reloading"}, fault: "in time"},
		{name: "not running", systemd: fakeSystemd{refuse: busNotApplicable}, fault: "not active", stopped: true},
		{name: "no such unit", systemd: fakeSystemd{refuse: busNoSuchUnit}, fault: "no unit haproxy.service"},
		{name: "not allowed", systemd: fakeSystemd{refuse: busAuthNeeded}, fault: "polkit"},
		{name: "denied", systemd: fakeSystemd{refuse: busAccessDenied}, fault: "polkit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := unit{"haproxy.service", c.systemd.serve(t, bustest.Start(t))}
			wait := 20 * time.Second
			if c.fault == "in time" {
				wait = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			err := u.reload(ctx)
			if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("error %v, want %q", err, c.fault)
			}
			if errors.Is(err, errNotRunning) != c.stopped {
				t.Errorf("%v: counts as not running: %t, want %t", err, !c.stopped, c.stopped)
			}
			if asked := <-c.systemd.asked; asked != "haproxy.service replace" {
				t.Errorf("systemd was asked for %q", asked)
			}
		})
	}
}

// Without a bus nothing of the files is lost: the reload is owed and tried again.
func TestUnitWithoutABus(t *testing.T) {
	u := unit{"haproxy.service", func(context.Context) (*dbus.Conn, error) { return nil, errors.New("no bus here") }}
	if err := u.reload(t.Context()); err == nil || !strings.Contains(err.Error(), "no bus here") {
		t.Errorf("error %v", err)
	}
}

// A group with a unit goes the whole way from a new node to systemd's job.
func TestGroupReloadsItsUnit(t *testing.T) {
	f := fakeSystemd{result: "done", state: "active"}
	b := newBench(t)
	b.group.Reload, b.group.Unit, b.bus = nil, "haproxy.service", f.serve(t, bustest.Start(t))
	b.start()
	defer b.stop()
	b.nodes("main", "n1")
	eventually(t, "the unit was reloaded", func() bool { return b.status().Reloads == 1 })
	b.wantState(StateApplied)
	b.wantFile(text("n1"))
}
