package pgbouncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// place is where its server connections go, as host:port.
func (d Database) place() string { return d.Host + ":" + d.Port }

// present is what PgBouncer says of its databases now. wrong says which of those that
// are configured are missing, or lead elsewhere than the template's file has them.
func (b *bouncer) present(ctx context.Context) (there map[string]Database, wrong, err error) {
	err = b.do(ctx, func(ctx context.Context, c *console) (err error) {
		if there, err = c.databases(ctx); err == nil {
			wrong = b.wrong(there)
		}
		return err
	})
	return there, wrong, err
}

// wrong compares; b.talk is held.
func (b *bouncer) wrong(there map[string]Database) error {
	want := maps.Clone(b.want)
	if want == nil {
		want = make(map[string]string)
	}
	var lost []string
	for _, e := range b.Databases {
		d, known := there[e.Name]
		if !known || want[e.Name] != "" && want[e.Name] != d.place() {
			lost = append(lost, e.Name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return strays(lost, there, want, b.File)
}

// astray are the databases that do not lead where they should.
func astray(there map[string]Database, want map[string]string) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(want)) {
		if there[n].place() != want[n] {
			names = append(names, n)
		}
	}
	return names
}

// strays is the error of databases that are missing or do not lead where they should;
// file is the template's, "" for none.
func strays(names []string, there map[string]Database, want map[string]string, file string) error {
	var all []string
	for _, n := range names {
		switch d, known := there[n]; {
		case !known:
			all = append(all, fmt.Sprintf("PgBouncer has no database %s", n))
		default:
			all = append(all, fmt.Sprintf("database %s leads to %s and not to %s", n, d.place(), want[n]))
		}
	}
	hint := "does its pgbouncer.ini name it, not by \"*\" alone?"
	if file != "" {
		hint = "does its pgbouncer.ini %include " + file + "? what says its log?"
	}
	return fmt.Errorf("%s (%s)", strings.Join(all, ", "), hint)
}

// names are the databases that lead to a cluster.
func (b *bouncer) names(cluster string) (all []string) {
	for _, e := range b.Databases {
		if e.Cluster == cluster {
			all = append(all, e.Name)
		}
	}
	return all
}

// writes are the databases that lead to the writer of a cluster.
func (b *bouncer) writes(cluster string) (names []string) {
	for _, e := range b.Databases {
		if e.Cluster == cluster && e.Mode == topology.ModeWrite {
			names = append(names, e.Name)
		}
	}
	return names
}

// holdable says what speaks against a hold, before anything is paused: a PgBouncer that
// does not lead where it should would lead its clients astray after it, and what
// pgsteer has paused for somebody else would stay so.
func (c *Control) holdable(ctx context.Context, cluster string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.bouncers)) {
		b := c.bouncers[name]
		names := b.writes(cluster)
		if len(names) == 0 {
			continue
		}
		there, wrong, err := b.present(ctx)
		ours := slices.DeleteFunc(c.begin().paused(name), func(n string) bool { return !there[n].Paused || !slices.Contains(names, n) })
		if len(ours) > 0 {
			err = errors.Join(err, fmt.Errorf("%s paused by `pgsteer pgbouncer pause`: `pgsteer pgbouncer resume %s` ends it", isPaused(ours), name))
		}
		if err = cmp.Or(err, wrong); err != nil {
			errs = append(errs, fmt.Errorf("PgBouncer %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func isPaused(names []string) string {
	if len(names) == 1 {
		return "database " + names[0] + " is"
	}
	return "databases " + strings.Join(names, ", ") + " are"
}
