package pgbouncer

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// balancer accepts at a socket and answers as a server does, while open is set; else it
// closes the connection, as HAProxy does for a pool without a server.
func balancer(t *testing.T, network, address string) (at net.Addr, open *atomic.Bool, tries *atomic.Int32) {
	t.Helper()
	open, tries = new(atomic.Bool), new(atomic.Int32)
	ln, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			tries.Add(1)
			if b := make([]byte, 8); open.Load() {
				if _, err := c.Read(b); err == nil {
					_, _ = c.Write([]byte("N"))
				}
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr(), open, tries
}

// Clients go on only when a server answers where PgBouncer leads, and the answers last.
func TestOpen(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		address, d := "127.0.0.1:0", Database{}
		if network == "unix" {
			d = Database{Host: t.TempDir(), Port: "5432"}
			address = filepath.Join(d.Host, ".s.PGSQL.5432")
		}
		at, open, tries := balancer(t, network, address)
		if network == "tcp" {
			d.Host, d.Port, _ = net.SplitHostPort(at.String())
		}
		h := &Hold{paths: []string{d.path()}}
		if err := h.Open(short(t, 200*time.Millisecond)); err == nil || tries.Load() < 3 {
			t.Errorf("%s: nobody answers, tried %d times: %v", network, tries.Load(), err)
		}
		time.AfterFunc(100*time.Millisecond, func() { tries.Store(0); open.Store(true) })
		if err := h.Open(short(t, 10*time.Second)); err != nil || tries.Load() < askInARow {
			t.Errorf("%s: a server answers, asked %d times: %v", network, tries.Load(), err)
		}
	}
	if err := new(Hold).Open(context.Background()); err != nil {
		t.Error(err)
	}
}

// Where nobody answered before the pause, nobody is waited for; where a template leads, neither.
func TestPathsOfAHold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		open   bool
		change func(*Bouncer)
		paths  int
	}{
		{"a server answers", true, func(*Bouncer) {}, 1},
		{"nobody answers", false, func(*Bouncer) {}, 0},
		{"a template leads", true, byTemplate, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			at, open, _ := balancer(t, "tcp", "127.0.0.1:0")
			open.Store(tt.open)
			host, port, err := net.SplitHostPort(at.String())
			if err != nil {
				t.Fatal(err)
			}
			r.set(func() { r.databases["app"].Host, r.databases["app"].Port = host, port })
			only := func(b *Bouncer) {
				b.Databases = []Entry{{"app", "main", "primary", topology.ModeWrite}}
				tt.change(b)
			}
			h, err := r.run(only).Hold(short(t, 5*time.Second), "main")
			if err != nil {
				t.Fatal(err)
			}
			if len(h.paths) != tt.paths {
				t.Errorf("waited for is %v", h.paths)
			}
			if err := h.Release(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}
