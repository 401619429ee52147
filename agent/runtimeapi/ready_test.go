package runtimeapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// With Ready a server that comes in leaves MAINT by the push, so that a writer need
// not wait for its next agent check (the rig's never say a word). Without it,
// whoever set MAINT is obeyed.
func TestPushEndsMAINT(t *testing.T) {
	r := newRig(t)
	maint := func(server string) {
		t.Helper()
		if out, err := r.haproxy.Command(t.Context(), "set server be_main_primary/"+server+" state maint"); err != nil || strings.TrimSpace(out) != "" {
			t.Fatalf("%q, %v", out, err)
		}
	}
	r.name(1, "n1")
	eventually(t, time.Second, r.servedBy(t, "n1"))
	maint("n2") // as "maint down #in recovery" does
	r.name(2, "n2")
	eventually(t, 5*time.Second, func() error {
		if got := r.pusher.Status()[0].Applied["main"]; got != 2 {
			return fmt.Errorf("generation %d is applied", got)
		}
		return nil
	})
	eventually(t, time.Second, r.servedBy(t, "")) // an operator's word stands

	p, err := New(Options{Sockets: []string{r.haproxy.AdminSocket()}, Views: &r.views, Now: topology.NewTicker(time.Now), Ready: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, 5*time.Second, r.servedBy(t, "n2"))
	maint("n1")
	r.name(3, "n1")
	eventually(t, 5*time.Second, r.servedBy(t, "n1"))
}
