package postgres

import (
	"context"
	"sync/atomic"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// fresh is the short login beside the kept session. A postmaster that hangs
// keeps answering on old sessions; only a new one shows it (eligibility 21).
type fresh struct {
	busy atomic.Bool // one at a time
	said topology.FailureClass
}

// startLogin starts a fresh login. Without a kept session there is none: the
// attempts to open one are logins themselves.
func (p *Prober) startLogin(ctx context.Context) {
	p.loop.nextLogin = p.o.Now().Mono.Add(p.o.LoginEvery)
	if p.loop.session == nil || !p.fresh.busy.CompareAndSwap(false, true) {
		return
	}
	p.tasks.Go(func() {
		defer p.fresh.busy.Store(false)
		for p.freshLogin(ctx) {
		}
	})
}

// freshLogin reports whether to try again at once: one login in vain may be a
// lost packet, and the next turn is far away. One that did not take its timeout
// was not tried, since too many are unanswered, and waits for its turn.
func (p *Prober) freshLogin(ctx context.Context) (again bool) {
	asked := p.o.Now()
	w, f := p.door.login(ctx, p.o.LoginTimeout)
	if f == nil {
		p.seen(asked, topology.Probe{Kind: topology.ProbeLogin})
		w.hangUp()
		p.sayLogin("", "")
		return false
	}
	if ctx.Err() != nil {
		return false
	}
	p.failed(asked, f, topology.ProbeLogin)
	p.sayLogin(f.Class, f.Text)
	return f.Class == topology.FailTimeout && p.o.Now().Mono.Sub(asked.Mono) >= p.o.LoginTimeout
}

// sayLogin logs a change between logins that work and those that do not.
func (p *Prober) sayLogin(class topology.FailureClass, text string) {
	if class == p.fresh.said {
		return
	}
	p.fresh.said = class
	if class == "" {
		p.o.Logger.Info("fresh logins work again")
		return
	}
	p.o.Logger.Info("fresh login failed while the kept session works", "class", string(class), "error", text)
}
