package agent

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// openBook reads the records that this agent knows of.
func (a *Agent) openBook(dir string) *maintenance.Book {
	return maintenance.Open(maintenance.Options{
		Path: filepath.Join(dir, "maintenance.json"), Read: config.ReadFile, Now: a.o.Clock,
		Changed: a.obey, Logger: a.log.With("component", partMaintenance),
	})
}

// obey lets every cluster decide now, and every drain look.
func (a *Agent) obey() {
	a.drains.Wake()
	for _, c := range a.clustersNow() {
		c.wake.Set()
	}
}

// buildMaintenance makes the part that follows the store which all agents share,
// and that does nothing where each has its own file.
func (a *Agent) buildMaintenance(cfg *config.Config, client *consul.Client) (*part, error) {
	p := &part{status: func() []status.Sink { return []status.Sink{a.bookStatus()} }}
	tokens, err := a.newTokens(cfg.Maintenance)
	if err != nil {
		return nil, err
	}
	ender, err := a.newEnder(cfg.Maintenance.Sessions)
	if err != nil {
		return nil, err
	}
	if cfg.Maintenance.Store == config.StoreFile {
		p.begin = func() { a.tokens.Store(tokens); a.ender.Store(ender); a.book.Share(nil) }
		p.run = func(ctx context.Context) error { <-ctx.Done(); return nil }
		return p, nil
	}
	key := consul.NewKey(consul.KeyOptions{
		Client: client, Key: cfg.Maintenance.Key, Now: a.now, Logger: a.log.With("component", partMaintenance),
		Deliver: func(r consul.Result[string]) {
			switch {
			case r.Failure != nil:
				a.book.Lost(errors.New(r.Failure.Text))
			case r.Unsure == "": // else the sure answer follows
				a.book.Take([]byte(r.Value))
			}
		},
	})
	p.begin = func() { a.tokens.Store(tokens); a.ender.Store(ender); a.book.Share(key) }
	p.run = func(ctx context.Context) error { key.Run(ctx); return nil }
	return p, nil
}

func (a *Agent) bookStatus() status.Sink {
	ended, left := a.drains.Counts()
	s := status.Sink{
		Name: partMaintenance, State: status.SinkOK,
		Gauges:   map[string]uint64{"records": uint64(len(a.book.Set().Active(a.o.Clock()))), status.SessionsLeft: left},
		Counters: map[string]uint64{status.SessionsEnded: ended},
	}
	if err := errors.Join(a.book.Trouble(), a.drains.Trouble()); err != nil {
		s.State, s.Error = status.SinkFailing, err.Error()
	}
	return s
}

// tokens are the files of those who may ask and change; nil: there is no file.
type tokens struct {
	viewers, admins *rotating[[]admin.Token]
	named           admin.Tokens // those by name in their certificates
}

func (a *Agent) newTokens(m config.Maintenance) (*tokens, error) {
	read := func(path string) (*rotating[[]admin.Token], error) {
		if path == "" {
			return nil, nil
		}
		return newRotating(a.log.With("component", partMaintenance), func(texts [][]byte) ([]admin.Token, error) {
			return admin.ParseTokens(texts[0])
		}, path)
	}
	t := &tokens{named: admin.Tokens{ViewerNames: m.ViewerNames, AdminNames: m.AdminNames}}
	var err, err2 error
	t.viewers, err = read(m.ViewerTokenFile)
	t.admins, err2 = read(m.AdminTokenFile)
	return t, errors.Join(err, err2)
}

// get reads the files again if they changed.
func (t *tokens) get() (out admin.Tokens) {
	if t == nil {
		return out
	}
	out = t.named
	if t.viewers != nil {
		out.Viewers = t.viewers.get()
	}
	if t.admins != nil {
		out.Admins = t.admins.get()
	}
	return out
}

// sharedKey is where the records lie that all agents obey, "" for this agent's file.
func (a *Agent) sharedKey() string {
	if m := a.cfg.Load().Maintenance; m.Store == config.StoreConsul {
		return m.Key
	}
	return ""
}

func (a *Agent) adminServer() *admin.Server {
	return admin.New(admin.Options{
		Book: a.book, Drains: a.drains, Views: &a.views, Now: a.now, Clusters: a.clusterNames, Policy: a.policy, Shared: a.sharedKey,
		Tokens: func() admin.Tokens { return a.tokens.Load().get() }, Logger: a.log.With("component", "admin"),
	})
}

var _ maintenance.Shared = (*consul.Key)(nil)
