package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// openDrains reads what this agent had under way.
func (a *Agent) openDrains(dir string) *drain.Runner {
	by, _ := os.Hostname() // without a name the report says less
	if whole, err := filepath.Abs(dir); err == nil {
		by += " (" + whole + ")" // a host may have several agents
	}
	return drain.Open(drain.Options{
		Path: filepath.Join(dir, "drains.json"), Read: config.ReadFile, Now: a.o.Clock, By: by,
		Records: a.book.Set, Confirm: a.book.Confirm, Judged: a.judged, Setup: a.drainSetup, Logger: a.log.With("component", "drain"),
	})
}

// drainOf is how far the drain of a record is; nil without one.
func (a *Agent) drainOf(r maintenance.Record) *status.Drain {
	s := r.Sessions
	if s.ID == "" {
		return nil
	}
	d := status.Drain{Over: !a.o.Clock().Before(s.Deadline), By: s.By, Deadline: s.Deadline, EndIdle: s.EndIdle, Terminate: s.Terminate}
	if rep, ok := a.drains.Report(r.Target); ok && rep.ID == s.ID {
		d.Phase, d.Left, d.Ended, d.Over = string(rep.Phase), len(rep.Left), len(rep.Ended), rep.Phase.Over()
	}
	return &d
}

// judged is a node as it is judged now.
func (a *Agent) judged(cluster, node string) (drain.Judged, error) {
	v := a.views.Get(cluster)
	if !v.Valid(a.now().Mono) {
		return drain.Judged{}, fmt.Errorf("nothing is decided of cluster %s now", cluster)
	}
	n, ok := v.Snapshot.Node(node)
	if !ok {
		return drain.Judged{}, fmt.Errorf("cluster %s has no node %s now", cluster, node)
	}
	f := v.Facts.Nodes[node]
	j := drain.Judged{Node: n, Cluster: cluster, SystemID: v.Facts.SystemID, InRecovery: f.InRecovery}
	if f.Probe != nil {
		j.Timeline = f.Probe.Timeline
	}
	for _, p := range v.Snapshot.Pools {
		if n, _ := p.Verdict(node); n.Verdict == topology.Up {
			j.Open = true
		}
	}
	return j, nil
}

// ender is the role that ends sessions.
type ender struct {
	config.EndSessions
	password *rotating[string] // nil: there is no file
}

func (a *Agent) newEnder(s config.EndSessions) (*ender, error) {
	e := &ender{EndSessions: s}
	if s.PasswordFile == "" {
		return e, nil
	}
	var err error
	if e.password, err = newRotating(a.log.With("component", "drain"), parsePassword, s.PasswordFile); err != nil {
		return nil, fmt.Errorf("password of role %s: %w", s.User, err)
	}
	return e, nil
}

// as changes how a node is asked to how it is asked as this role.
func (e *ender) as(o postgres.Options) postgres.Options {
	switch {
	case e.password != nil:
		o.Password = e.password.get
	case e.User != o.User:
		o.Password = nil
	}
	o.User = e.User
	return o
}

// drainSetup is how sessions are ended by the present configuration.
func (a *Agent) drainSetup() drain.Setup {
	e := a.ender.Load()
	if e == nil || e.User == "" {
		return drain.Setup{}
	}
	return drain.Setup{
		Login: func(ctx context.Context, cluster string, n topology.Node) (drain.Session, error) {
			return a.loginAs(ctx, e, cluster, n)
		},
		Keep: e.KeepRoles,
		Own: func(cluster string) []string {
			cl, _ := a.cfg.Load().Cluster(cluster)
			return []string{e.User, cl.Postgres.User}
		},
	}
}

func (a *Agent) loginAs(ctx context.Context, e *ender, cluster string, n topology.Node) (drain.Session, error) {
	a.mu.Lock()
	c := a.clusters[cluster]
	a.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("there is no cluster %s", cluster)
	}
	look, f := postgres.Login(ctx, e.as(c.watch.asked(n)))
	if f != nil {
		return nil, errors.New(string(f.Class) + ": " + f.Text)
	}
	return look, nil
}
