package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// The watchdog is fed while every state goroutine turns, and not when one stands
// still, whatever the others do.
func TestTheWatchdogIsFedByTheStateGoroutines(t *testing.T) {
	l := notifySocket(t)
	t.Setenv("WATCHDOG_USEC", "30000") // fed every 10 ms
	fed := func(within time.Duration) bool {
		b := make([]byte, 4096)
		for end := time.Now().Add(within); ; {
			_ = l.SetReadDeadline(end)
			n, err := l.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(string(b[:n]), "WATCHDOG=1") {
				return true
			}
		}
	}
	cfg, err := config.FromNodes([]string{"n1=127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Clusters = append(cfg.Clusters, config.Cluster{Name: "two"})
	a := &Agent{o: Options{}.withDefaults(), now: topology.NewTicker(time.Now), log: slog.New(slog.DiscardHandler)}
	a.book = a.openBook(t.TempDir())
	a.cfg.Store(cfg)
	view := func(cluster string, life time.Duration) {
		a.views.Refresh(cluster, &topology.View{Snapshot: &topology.Snapshot{Cluster: cluster}, ValidUntil: a.now().Mono.Add(life)})
	}
	view("main", time.Hour)
	view("two", -time.Nanosecond)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.tellSystemd(ctx) }()
	defer func() { stop(); <-done }()
	if fed(200 * time.Millisecond) {
		t.Error("fed although one cluster stands still")
	}
	view("two", time.Hour)
	if !fed(patience) {
		t.Error("not fed although every cluster turns")
	}
}
