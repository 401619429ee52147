package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// Options of an Applier.
type Options struct {
	Groups []Group
	// Views has the newest view of each cluster by its name. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks. Required.
	Now topology.Ticker
	// Logger gets a line for each change of a group's state. Nil discards them.
	Logger *slog.Logger
	// Runner starts the check and reload commands. Nil: Exec with its defaults.
	Runner Runner
	// Bring brings running processes from one text to another without a reload, for
	// groups with Runtime. After an error the group reloads. Nil: every change reloads.
	Bring func(ctx context.Context, before, after []byte) error
	// Turn has a PgBouncer read its files again and turns it to where its databases
	// must lead, as host:port by name. Nil: groups with a PgBouncer cannot be made live.
	Turn func(ctx context.Context, bouncer string, leads map[string]string) error
	// Bus is where systemd listens, for groups with a Unit. Nil: the system's bus.
	Bus Bus
	// SettleMin is how long a group waits after a change for the next one: 200 ms.
	SettleMin time.Duration
	// SettleMax is how long it waits in all while changes go on: 2 s.
	SettleMax time.Duration
}

// Group is the set of files that one reload makes live.
type Group struct {
	Name  string
	Files []File // one at least
	// Clusters are the clusters that the files speak of, one at least.
	Clusters []string
	// Settings are what the templates know beside the nodes.
	Settings render.Settings

	// Check is the command that accepts the staged files by exit code 0. In its
	// arguments {{.Staged}} and {{.Destination}} are the staged and the final path
	// of the first file, {{.Staged 2}} and {{.Destination 2}} of the second. No
	// shell is involved. Empty: every text is accepted.
	Check []string
	// Reload is the command that makes the files live; {{.Destination}} as above.
	// Empty: Unit, or a "reload" over MasterSocket, or nothing when there is neither.
	Reload []string
	// Unit is the unit of systemd that is reloaded over D-Bus, such as
	// haproxy.service. It excludes Reload.
	Unit string
	// MasterSocket is the path of the CLI of HAProxy's master process (-S). With
	// it a reload counts once a new worker has appeared and stayed, which neither
	// systemd's word nor an exit code proves; when none appears in a quarter of Timeout,
	// the master is asked to reload. Empty: see AdminSockets.
	MasterSocket string
	// AdminSockets are paths of HAProxy's admin sockets. Without MasterSocket a reload of
	// HAProxy's files counts once another process answers at one that these files bind
	// and that answered before; when none did, the exit code counts.
	AdminSockets []string
	// PgBouncer is the one that Options.Turn reloads. It excludes Reload and Unit.
	PgBouncer string
	// Runtime has Bring tried before a reload. The files are checked and replaced
	// all the same, so that a process that starts later runs with the same.
	Runtime bool

	// Preflight has tried, once the check has passed, what a reload of HAProxy needs and
	// the check does not look at: new ports that are free, and the folders of chroot and
	// of new sockets. Files that are not there yet are not tried. It makes sense where HAProxy runs beside this process, on the same
	// network and file system.
	Preflight bool

	Timeout        time.Duration // of the check, and of reload and confirmation together: 30 s
	ReloadInterval time.Duration // least time between two reloads: 5 s
	// EmptyHold is how long a cluster that lost all its nodes at once, or more than
	// half of them, keeps its last ones: 30 s.
	EmptyHold time.Duration
	// ReloadAtStart reloads once even if the files on disk are as desired. By
	// default they are then taken to be what runs.
	ReloadAtStart bool
}

// File is one file of a group.
type File struct {
	Template render.Template
	// Destination is an absolute path. A symbolic link is followed and stays.
	Destination string
	// Mode is set before the file appears; zero means 0640. Its owner stays as it was.
	Mode fs.FileMode
	// HAProxy says that the file is a whole configuration of HAProxy, so that
	// render.CheckHAProxy must find nothing in it.
	HAProxy bool
	// PgBouncer says that the file is the section [databases] of the group's PgBouncer, so
	// that render.CheckPgBouncer must find nothing in it.
	PgBouncer bool
}

func (g Group) withDefaults() Group {
	g.Timeout = cmp.Or(g.Timeout, 30*time.Second)
	g.ReloadInterval = cmp.Or(g.ReloadInterval, 5*time.Second)
	g.EmptyHold = cmp.Or(g.EmptyHold, 30*time.Second)
	files := make([]File, len(g.Files))
	for i, f := range g.Files {
		f.Mode = cmp.Or(f.Mode, 0o640)
		f.Destination = filepath.Clean(f.Destination)
		files[i] = f
	}
	g.Files = files
	return g
}

// Validate reports every fault of a group that can be told without running it.
func (g Group) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if g.Name == "" {
		bad("a group has no name")
	}
	if len(g.Files) == 0 {
		bad("there is no file")
	}
	if g.Unit != "" && len(g.Reload) > 0 {
		bad("both a reload command and the unit %s are to make the files live", g.Unit)
	}
	if g.PgBouncer != "" && (g.Unit != "" || len(g.Reload) > 0 || g.MasterSocket != "") {
		bad("both PgBouncer %s and something else are to make the files live", g.PgBouncer)
	}
	if len(g.Clusters) == 0 {
		bad("there is no cluster")
	}
	if min(g.Timeout, g.ReloadInterval, g.EmptyHold) < 0 {
		bad("a time is negative")
	}
	for _, f := range g.Files {
		if !filepath.IsAbs(f.Destination) {
			bad("destination %q is not an absolute path", f.Destination)
		}
		if f.Mode&^0o775 != 0 {
			bad("mode %#o of %s: only permissions are allowed, and none to write for others", uint32(f.Mode), f.Destination)
		}
		errs = append(errs, render.Check(f.Template))
	}
	places := g.places(nil)
	_, err := places.expand(g.Reload)
	if err != nil {
		bad("reload command: %w", err)
	}
	places.staged = places.destinations
	if _, err := places.expand(g.Check); err != nil {
		bad("check command: %w", err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("template group %q: %w", g.Name, err)
	}
	return nil
}

func (o Options) validate() error {
	errs := []error{}
	if o.Views == nil || o.Now == nil {
		errs = append(errs, errors.New("apply: Views and Now are required"))
	}
	names, owners := map[string]bool{}, map[string]string{}
	for _, g := range o.Groups {
		errs = append(errs, g.Validate())
		if names[g.Name] {
			errs = append(errs, fmt.Errorf("template group %q is there twice", g.Name))
		}
		names[g.Name] = true
		for _, f := range g.Files {
			path := filepath.Clean(f.Destination)
			if other, ok := owners[path]; ok {
				errs = append(errs, fmt.Errorf("template groups %q and %q both write %s", other, g.Name, path))
			}
			owners[path] = g.Name
		}
	}
	return errors.Join(errs...)
}
