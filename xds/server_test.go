package xds

import (
	"net"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// A listener that fails ends Run, and with it everything that Run started.
func TestRunEndsWithItsListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	s := New(Options{Views: new(latest.Map[string, topology.View])})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context(), ln) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a closed listener is no error")
		}
	case <-time.After(10 * time.Second):
		t.Error("Run goes on without a listener")
	}
}
