package systemd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/pgsteer/pgsteer/agent/systemd/bustest"
)

// properties answers for every property of one unit, as systemd does.
type properties map[string]any

// GetAll is org.freedesktop.DBus.Properties'.
func (p properties) GetAll(string) (map[string]godbus.Variant, *godbus.Error) {
	all := make(map[string]godbus.Variant)
	for name, value := range p {
		all[name] = godbus.MakeVariant(value)
	}
	return all, nil
}

// Subscribe is called by every client.
func (properties) Subscribe() *godbus.Error { return nil }

func TestAskUnit(t *testing.T) {
	address := bustest.Start(t)
	open := func(ctx context.Context) (*godbus.Conn, error) {
		return godbus.Connect(address, godbus.WithContext(ctx))
	}
	connect := func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) { return open(ctx) })
	}
	systemd, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	if _, err := AskUnit(t.Context(), connect, "haproxy.service"); err == nil || !strings.Contains(err.Error(), "ask systemd for haproxy.service: ") {
		t.Errorf("nobody plays systemd: %v", err)
	}
	if _, err := systemd.RequestName("org.freedesktop.systemd1", godbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Unit{{Load: "loaded", Active: "active", CanReload: true}, {Load: "not-found", Active: "inactive"}} {
		p := properties{"LoadState": want.Load, "ActiveState": want.Active, "CanReload": want.CanReload, "Id": "haproxy.service"}
		err := errors.Join(
			systemd.Export(p, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
			systemd.Export(p, "/org/freedesktop/systemd1/unit/haproxy_2eservice", "org.freedesktop.DBus.Properties"),
		)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := AskUnit(t.Context(), connect, "haproxy.service"); got != want || err != nil {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	absent := func(context.Context) (*dbus.Conn, error) { return nil, errors.New("no such socket") }
	if _, err := AskUnit(t.Context(), absent, "x.service"); err == nil || !strings.Contains(err.Error(), "systemd's D-Bus: no such socket") {
		t.Errorf("without a bus: %v", err)
	}
}
