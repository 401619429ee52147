package lab_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

const haproxyConfig = `
global
	stats socket @ADMIN_SOCKET@ level admin
defaults
	mode tcp
	timeout connect 1s
	timeout client 1m
	timeout server 1m
listen write
	bind %s
	server n1 %s
`

// TestHAProxy has applications write to PostgreSQL through HAProxy.
func TestHAProxy(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedHAProxy)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := must(l.Cluster(ctx, lab.ClusterOptions{Nodes: 1}))(t)
	port := must(l.FreeAddr())(t)
	config := fmt.Sprintf(haproxyConfig, port, c.Node("n1").Addr())
	h := must(l.HAProxy(ctx, lab.HAProxyOptions{Config: config}))(t)

	load := l.Load(port, lab.LoadOptions{})
	fresh := l.Load(port, lab.LoadOptions{NewSession: true, Sessions: 2})
	wrote := func(s lab.Sample) bool { return s.Op == lab.Write && s.Err == nil && s.Port == c.Node("n1").Port() }
	for _, d := range []*lab.Load{load, fresh} {
		if err := d.Wait(ctx, "a row is written", wrote); err != nil {
			t.Fatal(err)
		}
	}
	testReloads(ctx, t, h, config)
	if err := h.Freeze(); err != nil {
		t.Fatal(err)
	}
	failed := func(s lab.Sample) bool { return s.Err != nil }
	if err := load.Wait(ctx, "a write fails", failed); err != nil {
		t.Fatal(err)
	}
	if err := h.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := h.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := load.Wait(ctx, "a row is written after the restart", wrote); err != nil {
		t.Fatal(err)
	}
	if s := fresh.Stop(); len(s) == 0 || !slices.IsSortedFunc(s, func(a, b lab.Sample) int { return a.At.Compare(b.At) }) {
		t.Errorf("%d samples, or not in order", len(s))
	}
}

func testReloads(ctx context.Context, t *testing.T, h *lab.HAProxy, config string) {
	t.Helper()
	before := must(h.Workers(ctx))(t)
	if err := h.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	after := must(h.Workers(ctx))(t)
	if len(after) != 1 || slices.Equal(before, after) {
		t.Errorf("workers %v, before the reload %v", after, before)
	}
	if old := must(h.OldWorkers(ctx))(t); !slices.Equal(old, before) { // it holds the session of a load
		t.Errorf("old workers %v, want %v", old, before)
	}
	if err := h.WriteConfig("nonsense\n"); err != nil {
		t.Fatal(err)
	}
	if err := h.Reload(ctx); err == nil {
		t.Error("a nonsensical configuration was taken")
	}
	if err := h.WriteConfig(config); err != nil {
		t.Fatal(err)
	}
	if out := must(h.Command(ctx, "show servers state write"))(t); !strings.Contains(out, " n1 ") {
		t.Errorf("unexpected answer %q", out)
	}
	if err := h.Reload(ctx); err != nil {
		t.Fatal(err)
	}
}
