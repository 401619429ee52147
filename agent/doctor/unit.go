package doctor

import (
	"context"
	"fmt"
	"slices"
)

// Unit is what systemd says of one of its units.
type Unit struct {
	Load   string // loaded, not-found, masked, error
	Active string // active, inactive, failed
	// CanReload: it has an ExecReload=.
	CanReload bool
	// Root: this process may have every unit reloaded.
	Root bool
}

func reloadUnits(ctx context.Context, x *exam) []Result {
	if x.Unit == nil {
		return nil
	}
	var units []string
	for _, t := range x.Config.Templates {
		if t.ReloadUnit != "" && !slices.Contains(units, t.ReloadUnit) {
			units = append(units, t.ReloadUnit)
		}
	}
	var all []Result
	for _, name := range units {
		all = append(all, x.reloadUnit(ctx, name))
	}
	return all
}

// reloadUnit never reloads. Whether systemd would let another user than root is
// decided by polkit for each unit and verb, and polkit answers such a question to
// root alone, so it stays a warning.
func (x *exam) reloadUnit(ctx context.Context, name string) Result {
	r := Result{Subject: name, Level: Fail, Tried: "ask systemd over D-Bus for LoadState, ActiveState and CanReload"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	u, err := x.Unit(ctx, name)
	switch {
	case err != nil:
		r.Found, r.Do = err.Error(), "see that systemd and dbus run here and that the agent's unit hides /run/dbus from nobody; or use reload, or master_socket, instead of reload_unit"
	case u.Load != "loaded":
		r.Found, r.Do = fmt.Sprintf("its state is %q: systemd has no such unit, or cannot read it", u.Load), "correct reload_unit; systemctl status "+name
	case !u.CanReload:
		r.Found, r.Do = "it cannot be reloaded", "give the unit an ExecReload=, or use reload"
	case u.Active != "active":
		r.Level, r.Found, r.Do = Warn, "it is "+u.Active+": there is nothing to reload", "systemctl start "+name
	case !u.Root:
		r.Level, r.Found = Warn, "it can be reloaded; whether this user may cannot be found out without doing it"
		r.Do = "have the polkit rule of examples/systemd, and try it once as this user: busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager ReloadUnit ss " + name + " replace"
	default:
		r.Level, r.Found = OK, "it can be reloaded, by root"
	}
	return r
}
