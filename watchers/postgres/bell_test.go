package postgres

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestBell: a sleeper wakes at its time, when it is rung, before the sleep too, and
// when its server says something or leaves.
func TestBell(t *testing.T) {
	type woken struct {
		after       time.Duration
		asked, plan bool
	}
	const night = time.Minute
	for name, c := range map[string]struct {
		happen func(b *bell, server net.Conn)
		want   woken
		bare   woken // without a socket
	}{
		"nothing":        {func(*bell, net.Conn) {}, woken{after: night}, woken{after: night}},
		"asked":          {func(b *bell, _ net.Conn) { b.ask() }, woken{asked: true}, woken{asked: true}},
		"replanned":      {func(b *bell, _ net.Conn) { b.replan() }, woken{plan: true}, woken{plan: true}},
		"both":           {func(b *bell, _ net.Conn) { b.replan(); b.ask(); b.ask() }, woken{asked: true, plan: true}, woken{asked: true, plan: true}},
		"woken":          {func(b *bell, _ net.Conn) { b.wake() }, woken{}, woken{}},
		"a word":         {func(_ *bell, s net.Conn) { go func() { _, _ = s.Write([]byte("hello")) }() }, woken{asked: true}, woken{after: night}},
		"the end of one": {func(_ *bell, s net.Conn) { _ = s.Close() }, woken{asked: true}, woken{after: night}},
	} {
		for when, early := range map[string]bool{"before": true, "during": false} {
			for on, bare := range map[string]bool{"socket": false, "nothing": true} {
				t.Run(name+" "+when+" on "+on, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						client, server := net.Pipe()
						defer server.Close()
						k := newConns(func() {}).add(client)
						defer k.drop()
						b, sock, want := newBell(), k, c.want
						if bare {
							sock, want = nil, c.bare
						}
						if early {
							c.happen(b, server)
						} else {
							go func() { synctest.Wait(); c.happen(b, server) }()
						}
						began := time.Now()
						asked, plan := b.sleep(night, sock)
						if got := (woken{time.Since(began), asked, plan}); got != want {
							t.Errorf("woken %+v, want %+v", got, want)
						}
						began = time.Now() // nothing of it is left for the next sleep
						if asked, plan := b.sleep(night, sock); asked || plan || time.Since(began) != night {
							t.Errorf("the next sleep took %v: asked %t, plan %t", time.Since(began), asked, plan)
						}
					})
				})
			}
		}
	}
}
