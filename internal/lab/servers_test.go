package lab_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestConsulKeepsData: what was written survives a stop and a kill.
func TestConsulKeepsData(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := must(l.Consul(ctx))(t)
	if err := c.Put(ctx, "service/main/leader", "n1"); err != nil {
		t.Fatal(err)
	}
	for _, stop := range []func() error{func() error { return c.Stop(ctx) }, c.Kill} {
		addr := c.Addr()
		if err := errors.Join(stop(), c.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(addr, c.Addr()); diff != "" {
			t.Errorf("the address changed (-want +got):\n%s", diff)
		}
		if got := must(c.Get(ctx, "service/main/leader"))(t); got != "n1" {
			t.Errorf("got %q, want n1", got)
		}
	}
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	if _, err := c.Get(short, "service/main/leader"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen Consul gave %v", err)
	}
	if err := errors.Join(c.Thaw(), c.Delete(ctx, "service/")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "service/main/leader"); !errors.Is(err, lab.ErrNoKey) {
		t.Errorf("got %v, want ErrNoKey", err)
	}
}

func TestEnvoy(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedEnvoy)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := must(l.Envoy(ctx, lab.EnvoyOptions{
		Bootstrap: "node: {id: test, cluster: test}\n", Args: []string{"--concurrency", "2"},
	}))(t)
	if out := must(e.Admin(ctx, "/server_info"))(t); !strings.Contains(out, `"LIVE"`) {
		t.Errorf("server_info: %s", out)
	}
	if err := errors.Join(e.Kill(), e.Start(ctx)); err != nil {
		t.Fatal(err)
	}
}

// TestStartFails: an error says what the server said.
func TestStartFails(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedEnvoy)
	_, err := l.Envoy(t.Context(), lab.EnvoyOptions{Bootstrap: "nonsense: 1\n"})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Fatalf("got %v", err)
	}
}
