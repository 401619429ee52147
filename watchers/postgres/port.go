package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// portPatience is after how long a session whose question nobody answers is
// given up: the PgBouncer at its other end may be another one by now.
const portPatience = 15 * time.Second

// Ports are the pools' own ports and how each is checked.
type Ports map[uint16]topology.PortCheck

// SetPorts replaces the ports that are checked on the node's host, each every
// Interval. It never blocks and may be called by any goroutine at any time, also
// before Run. The map must not change afterwards.
func (p *Prober) SetPorts(ports Ports) {
	p.ports.Store(&ports)
	p.bell.replan()
}

// portRun is a port's running check.
type portRun struct {
	how  topology.PortCheck
	stop context.CancelFunc
}

// followPorts starts and stops checks, so that the wanted ones run.
func (p *Prober) followPorts(ctx context.Context) {
	wanted := p.ports.Load()
	if wanted == p.loop.wanted {
		return
	}
	p.loop.wanted = wanted
	for port, r := range p.loop.ports {
		if (*wanted)[port] != r.how {
			r.stop()
			delete(p.loop.ports, port)
		}
	}
	for port, how := range *wanted {
		if _, runs := p.loop.ports[port]; runs || how != topology.PortCheckConnect && how != topology.PortCheckPgBouncer {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		p.loop.ports[port] = portRun{how: how, stop: cancel}
		c, d := p.newPortCheck(port, how)
		p.tasks.Go(func() {
			c.run(ctx)
			d.conns.part()
		})
	}
}

func (p *Prober) newPortCheck(port uint16, how topology.PortCheck) (*check, *door) {
	stir := watchers.NewNudge()
	d := newDoor(&p.o, topology.Address{Host: p.o.Address.Host, Port: port}, stir.Set)
	c := &check{
		p: p, what: fmt.Sprintf("port %d", port), every: p.o.Interval, kind: topology.ProbePort, port: port, stir: stir,
		good: topology.Observation{Port: &topology.PortOpen{Node: p.o.Node, Address: p.o.Address, Port: port}},
		ask:  func(ctx context.Context) (*topology.Failure, time.Duration) { return d.connect(ctx), 0 },
	}
	if how == topology.PortCheckPgBouncer {
		d.class = bouncerClass
		c.kept = &kept{door: d, sql: "SELECT 1", timeout: p.o.QueryTimeout, patience: portPatience}
		c.ask = c.throughBouncer
	}
	return c, d
}

// connect connects and leaves by FIN, which neither PostgreSQL nor PgBouncer
// logs (measured on 15 and 1.18).
func (d *door) connect(ctx context.Context) *topology.Failure {
	ctx, cancel := context.WithTimeout(ctx, d.o.ConnectTimeout)
	defer cancel()
	l := &link{door: d}
	_, err := d.dialAny(ctx, l)
	if err != nil {
		return d.o.failure(classOf(err), fmt.Sprintf("connect to %s: %s", d.address, plain(err)))
	}
	c := l.conn.Load()
	if d.conns.count() > lingerMost {
		c.drop() // whatever listens there never closes its end; no answer is due that could meet a reset
		return nil
	}
	_ = c.Close() // it never fails
	return nil
}

// throughBouncer asks the server behind a PgBouncer over a kept session, since
// PgBouncer logs each login and each end.
func (c *check) throughBouncer(ctx context.Context) (*topology.Failure, time.Duration) {
	f, err := c.kept.ask(ctx)
	if err != nil {
		f = c.p.o.failure(bouncerClass(err), fmt.Sprintf("query through %s: %s", c.kept.door.address, plain(err)))
	}
	if f == nil {
		return nil, 0
	}
	if f.Class == topology.FailTimeout && c.kept.wire == nil {
		return f, startingAgain // each further login is a line in PgBouncer's log
	}
	return f, holdAfter(f.Class)
}

// bouncerClass sorts errors of a PgBouncer, which has one SQLSTATE, 08P01, for
// all it says itself, in fixed English words (read in its source, 1.18 to 1.25;
// what a server said, newer versions pass on with its own SQLSTATE). What it says
// of the client is a refusal by word: something answers. What it says of its
// server means that no server answers through it.
func bouncerClass(err error) topology.FailureClass {
	var state *pgconn.PgError
	if !errors.As(err, &state) || state.Code != "08P01" {
		return classOf(err)
	}
	has := func(words string) bool { return strings.Contains(state.Message, words) }
	switch {
	case has("no more connections allowed"):
		return topology.FailSlots
	case has("server"), has("query_wait_timeout"), has("shutting down"):
		return topology.FailTimeout
	case has("database") && has("does not exist"), has("no such database"):
		return topology.FailDatabase
	}
	return topology.FailAuth
}
