package apply

import (
	"context"
	"errors"
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Bus opens a connection to the D-Bus that systemd listens at; the context ends it.
type Bus func(ctx context.Context) (*dbus.Conn, error)

// Errors by name of systemd's D-Bus interface, org.freedesktop.systemd1(5), and of
// D-Bus itself.
const (
	busNoSuchUnit    = "org.freedesktop.systemd1.NoSuchUnit"
	busNotApplicable = "org.freedesktop.systemd1.JobTypeNotApplicable"
	busAccessDenied  = "org.freedesktop.DBus.Error.AccessDenied"
	busAuthNeeded    = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
)

// unit is a unit of systemd that is reloaded over D-Bus, without a process and
// without a shell.
type unit struct {
	name string
	bus  Bus
}

// reload returns once systemd's job is done and the unit is still active. For
// HAProxy that proves nothing yet: systemd calls a reload good that its master
// refused, so a master socket should confirm it.
func (u unit) reload(ctx context.Context) error {
	conn, err := u.bus(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd's D-Bus: %w", err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	if _, err := conn.ReloadUnitContext(ctx, u.name, "replace", done); err != nil {
		return u.explain(err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("systemd did not finish the reload of %s in time: %w", u.name, context.Cause(ctx))
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd's reload of %s ended as %q; see journalctl -u %s", u.name, result, u.name)
		}
	}
	active, err := conn.GetUnitPropertyContext(ctx, u.name, "ActiveState")
	if err != nil {
		return fmt.Errorf("ask systemd for the state of %s after its reload: %w", u.name, err)
	}
	if state, _ := active.Value.Value().(string); state != "active" {
		return fmt.Errorf("after its reload %s is %q, not active", u.name, state)
	}
	return nil
}

// explain says what systemd's refusal means for who set this up.
func (u unit) explain(err error) error {
	var refused godbus.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("ask systemd to reload %s: %w", u.name, err)
	}
	switch refused.Name {
	case busNotApplicable:
		return fmt.Errorf("%w: %s is not active, so there is nothing to reload", errNotRunning, u.name)
	case busNoSuchUnit:
		return fmt.Errorf("systemd has no unit %s: %w", u.name, err)
	case busAccessDenied, busAuthNeeded:
		return fmt.Errorf("systemd does not let this user reload %s, which takes root or a polkit rule (examples/systemd): %w", u.name, err)
	}
	return fmt.Errorf("ask systemd to reload %s: %w", u.name, err)
}
