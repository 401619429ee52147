package runtimeapi

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// A version with a known fault is logged once for a process, and again when
// HAProxy comes back with another one.
func TestAVersionWithAFaultIsLogged(t *testing.T) {
	var log bytes.Buffer
	o := withDefaults(Options{
		Views: new(latest.Map[string, topology.View]), Now: func() topology.Clock { return topology.Clock{} },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	s := newSocket(&o, haproxycli.Socket{Network: "unix", Address: "/x"})
	for _, step := range []struct {
		info  string
		times int
	}{
		{"Pid: 1\nVersion: 2.2.10\n", 1},
		{"Pid: 1\nVersion: 2.2.10\n", 1},
		{"Pid: 2\nVersion: 2.3.5\n", 2},
		{"Pid: 3\nVersion: 2.6.12-1+deb12u4\n", 2},
	} {
		if err := s.compareProcess(step.info, complaints{}); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "known fault"); n != step.times {
			t.Errorf("after %q: logged %d times, want %d:\n%s", step.info, n, step.times, &log)
		}
	}
}
