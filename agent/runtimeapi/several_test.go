package runtimeapi

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Of two HAProxys one hangs: the other is told at once all the same, the status says
// which one is behind, and that one hears the newest decision once it answers.
func TestSocketThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fakes := map[string]*fakeHAProxy{}
		for i, at := range []string{"/run/a.sock", "/run/b.sock"} {
			fakes[at] = &fakeHAProxy{pid: i + 1, started: time.Now(), state: map[string]string{}, retired: map[string]bool{}}
		}
		hangs, well := fakes["/run/a.sock"], fakes["/run/b.sock"]
		views := new(latest.Map[string, topology.View])
		p, err := New(Options{
			Sockets: []string{"/run/a.sock", "/run/b.sock"}, Views: views, Now: topology.NewTicker(time.Now),
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				return fakes[address].dial(ctx, network, address)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		show(views, snapshot(1, 1, replicas(up, down)))
		if a, b := hangs.heard(), well.heard(); len(a) != 4 || len(b) != 4 {
			t.Fatalf("both were to be told at once: %q, %q", a, b)
		}

		hangs.set(func() { hangs.hangs = true })
		moved := []string{
			"set server be_main_replica/n1 agent down", "shutdown sessions server be_main_replica/n1",
			"set server be_main_replica/n2 weight 100%", "set server be_main_replica/n2 agent up",
		}
		show(views, snapshot(2, 2, replicas(down, up)))
		if diff := cmp.Diff(moved, well.heard()); diff != "" {
			t.Errorf("at the same moment the other is told: %s", diff)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		show(views, snapshot(3, 3, replicas(up, down))) // also while the first one is waited for again
		if got := well.heard(); len(got) != 4 {
			t.Errorf("at the next decision the other is told %q", got)
		}
		if a, b := p.Status()[0], p.Status()[1]; a.Err == nil || a.Applied["main"] != 1 || b.Err != nil || b.Applied["main"] != 3 {
			t.Errorf("status %+v, %+v", a, b)
		}

		show(views, snapshot(4, 4, replicas(down, up)))
		hangs.set(func() { hangs.hangs = false })
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(moved, hangs.heard()); diff != "" {
			t.Errorf("once it answers it hears the newest alone: %s", diff)
		}
		if a := p.Status()[0]; a.Err != nil || a.Applied["main"] != 4 {
			t.Errorf("status %+v", a)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
