package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/pgbouncer"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/templates/render"
)

// partBouncers speaks to the consoles of PgBouncers.
const partBouncers = "pgbouncer"

// bouncerFile has, in the state folder, what was paused.
const bouncerFile = "pgbouncer.json"

// madeOfBouncers is what the part is made of; pools' modes and templates count too.
func madeOfBouncers(cfg *config.Config) any {
	var more []string
	for _, b := range cfg.PgBouncers {
		for _, d := range b.Databases {
			more = append(more, fmt.Sprint(d.Name, cfg.Mode(d.Pool), templated(cfg, b.Name), bouncerFileOf(cfg, b.Name)))
		}
	}
	return []any{cfg.PgBouncers, more}
}

// templated reports whether a template writes the file of a PgBouncer.
func templated(cfg *config.Config, bouncer string) bool {
	return slices.ContainsFunc(cfg.Templates, func(t config.Template) bool { return t.PgBouncer == bouncer })
}

// bouncerFileOf is the file that a template writes for a PgBouncer, "" for none.
func bouncerFileOf(cfg *config.Config, bouncer string) string {
	for _, t := range cfg.Templates {
		if i := slices.IndexFunc(t.Files, config.File.IsPgBouncer); t.PgBouncer == bouncer && i >= 0 {
			return t.Files[i].Destination
		}
	}
	return ""
}

// bouncerLogin is how to get at a PgBouncer's console.
func bouncerLogin(b config.PgBouncer, log *slog.Logger) (pgbouncer.Login, error) {
	l := pgbouncer.Login{Address: string(b.Address), User: b.User, PlainToo: b.SSLMode == config.SSLPrefer}
	if b.PasswordFile != "" {
		r, err := newRotating(log, parsePassword, b.PasswordFile)
		if err != nil {
			return l, fmt.Errorf("password of PgBouncer %s: %w", b.Name, err)
		}
		l.Password = r.get
	}
	var err error
	if l.TLS, err = tlsFor(config.Postgres{SSLMode: b.SSLMode, SSLRootCert: b.SSLRootCert}, log); err != nil {
		return l, fmt.Errorf("PgBouncer %s: %w", b.Name, err)
	}
	return l, nil
}

func (a *Agent) buildBouncers(cfg *config.Config) (*part, error) {
	log := a.log.With("component", partBouncers)
	o := pgbouncer.Options{Views: &a.views, Now: a.now, Path: filepath.Join(a.store.dir, bouncerFile), Settled: a.settled, Logger: log}
	for _, b := range cfg.PgBouncers {
		login, err := bouncerLogin(b, log)
		if err != nil {
			return nil, err
		}
		one := pgbouncer.Bouncer{
			Name: b.Name, Timeout: b.Timeout, Templated: templated(cfg, b.Name), File: bouncerFileOf(cfg, b.Name), Login: login,
		}
		if leads, ok := a.led.Load(b.Name); ok && one.Templated {
			one.Leads = leads.(map[string]string) //nolint:forcetypeassert // turnPgBouncer alone stores
		}
		for _, d := range b.Databases {
			one.Databases = append(one.Databases, pgbouncer.Entry{Name: d.Name, Cluster: d.Pool.Cluster, Pool: d.Pool.Pool, Mode: cfg.Mode(d.Pool)})
		}
		o.Bouncers = append(o.Bouncers, one)
	}
	c, err := pgbouncer.New(o)
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context) error {
		defer a.bouncers.CompareAndSwap(c, nil)
		return c.Run(ctx)
	}
	return &part{begin: func() { a.bouncers.Store(c) }, run: run, status: func() []status.Sink { return bouncerSinks(c.Status()) }}, nil
}

func bouncerSinks(all []pgbouncer.Status) (out []status.Sink) {
	for _, s := range all {
		sink := status.Sink{
			Name: strings.TrimSpace(partBouncers + " " + s.Bouncer), State: status.SinkOK, Since: s.Since, Detail: bouncerDetail(s), Counters: s.Counters,
			Gauges: map[string]uint64{
				"paused": uint64(len(s.Paused)), "paused_elsewhere": uint64(len(s.PausedElsewhere)), "disabled": uint64(len(s.Disabled)),
				"servers_leaving": uint64(s.Leaving),
			},
		}
		if s.Err != nil {
			sink.State, sink.Error = status.SinkFailing, s.Err.Error()
		}
		out = append(out, sink)
	}
	return out
}

// bouncerDetail says where databases lead now, and which take no clients or have them
// wait; "" while PgBouncer cannot be asked.
func bouncerDetail(s pgbouncer.Status) string {
	var all []string
	for _, d := range s.Leads {
		text := d.Name + " leads to " + d.Host + ":" + d.Port
		switch {
		case slices.Contains(s.Paused, d.Name):
			text += " (paused by pgsteer)"
		case d.Paused:
			text += " (paused, not by pgsteer)"
		}
		if d.Disabled {
			text += " (disabled: no new clients)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// turnPgBouncer reloads a PgBouncer for a template, see pgbouncer.
func (a *Agent) turnPgBouncer(ctx context.Context, name string, leads map[string]string) error {
	c := a.bouncers.Load()
	if c == nil {
		return errors.New("no PgBouncer is spoken to at this moment")
	}
	a.led.Store(name, maps.Clone(leads))
	return c.Reload(ctx, name, leads)
}

// renderDatabases are the databases of the PgBouncer that reads a template's files.
func renderDatabases(cfg *config.Config, bouncer string) (all []render.Database) {
	b, _ := cfg.Bouncer(bouncer) // none: without databases
	for _, d := range b.Databases {
		one := render.Database{Name: d.Name, DBName: d.DBName, Cluster: d.Pool.Cluster, Pool: d.Pool.Pool}
		if one.DBName == "" {
			one.DBName = d.Name
		}
		all = append(all, one)
	}
	return all
}
