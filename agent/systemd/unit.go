package systemd

import (
	"context"
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
)

// Unit is what systemd says of one of its units.
type Unit struct {
	Load   string // loaded, not-found, masked, error
	Active string // active, inactive, failed
	// CanReload: it has an ExecReload=.
	CanReload bool
}

// AskUnit asks systemd for a unit, and changes nothing. connect opens the bus that
// systemd listens at; nil: the system's. Properties are those of
// org.freedesktop.systemd1(5).
func AskUnit(ctx context.Context, connect func(context.Context) (*dbus.Conn, error), name string) (Unit, error) {
	if connect == nil {
		connect = dbus.NewSystemConnectionContext
	}
	conn, err := connect(ctx)
	if err != nil {
		return Unit{}, fmt.Errorf("connect to systemd's D-Bus: %w", err)
	}
	defer conn.Close()
	p, err := conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return Unit{}, fmt.Errorf("ask systemd for %s: %w", name, err)
	}
	var u Unit
	u.Load, _ = p["LoadState"].(string)
	u.Active, _ = p["ActiveState"].(string)
	u.CanReload, _ = p["CanReload"].(bool)
	return u, nil
}
