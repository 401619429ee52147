package apply

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// roles is what a group whose files name who serves knows of that; the zero value
// knows nothing, and is that of all other groups.
type roles struct {
	named   map[render.PoolID]string // in the desired texts
	writers map[string]string        // of each cluster, when they were made
	leads   map[string]string        // where PgBouncer's databases lead by them
	urgent  bool                     // a writer has changed: no change is waited for
}

// take remembers whom a view names.
func (r *roles) take(v render.View, snaps []*topology.Snapshot) {
	r.named, r.writers, r.leads = render.Named(v), make(map[string]string), make(map[string]string)
	for _, s := range snaps {
		r.writers[s.Cluster] = s.Writer
	}
	for _, d := range v.Databases {
		if s, err := v.Leads(d); err == nil { // else the text would not be there
			r.leads[d.Name] = s.Place()
		}
	}
}

// isUrgent reports whether one of the clusters has a writer that the files do not name.
func (w *worker) isUrgent(clusters []string) bool {
	return w.Settings.Roles && slices.ContainsFunc(w.Clusters, func(c string) bool {
		v := w.views.Get(c)
		return slices.Contains(clusters, c) && v != nil && v.Snapshot != nil && v.Snapshot.Writer != "" && v.Snapshot.Writer != w.roles.writers[c]
	})
}

// withBefore are the settings with whom the files name now.
func (w *worker) withBefore() render.Settings {
	s := w.Settings
	s.Before = w.roles.named
	return s
}

// nameable reports whether a view names whom the files must; else what stands is held.
func (w *worker) nameable(v render.View) bool {
	if !w.Settings.Roles {
		return true
	}
	nobody := render.Unnamed(v)
	if len(nobody) > 0 {
		w.hold = "nobody is known to serve " + strings.Join(nobody, ", ") + " yet; what stands is held"
	}
	return len(nobody) == 0
}

// turnPgBouncer has the group's PgBouncer read the files.
func (w *worker) turnPgBouncer(ctx context.Context) error {
	if w.turn == nil {
		return errors.New("the console of PgBouncer " + w.PgBouncer + " is the running agent's")
	}
	return w.turn(ctx, w.PgBouncer, w.roles.leads)
}
