package runtimeapi

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"net"
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

// So it is where HAProxy is reached over its master's socket alone.
func TestAVersionWithAFaultIsLoggedByItsMaster(t *testing.T) {
	var log bytes.Buffer
	var answer string
	o := withDefaults(Options{
		Views: new(latest.Map[string, topology.View]), Now: func() topology.Clock { return topology.Clock{} },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Dial: func(context.Context, string, string) (net.Conn, error) {
			client, srv := net.Pipe()
			go func() {
				defer srv.Close()
				_, _ = bufio.NewReader(srv).ReadString('\n')
				_, _ = srv.Write([]byte(answer))
			}()
			return client, nil
		},
	})
	m := newMaster(&o, haproxycli.Socket{Network: "unix", Address: "/m"})
	for _, step := range []struct {
		worker string
		times  int
	}{
		{"2 worker 0 0d00h00m01s 2.2.10", 1},
		{"2 worker 0 0d00h00m02s 2.2.10", 1},
		{"3 worker 0 0d00h00m01s 2.3.5", 2},
		{"", 2}, // between two workers
		{"3 worker 0 0d00h00m03s 2.3.5", 2},
		{"4 worker 0 0d00h00m01s 2.6.12-1+deb12u4", 2},
	} {
		answer = "1 master 0 0d00h00m09s 2.2.10\n# workers\n" + step.worker + "\n\n"
		if err := m.look(t.Context()); (err == nil) != (step.worker != "") {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "known fault"); n != step.times {
			t.Errorf("after %q: logged %d times, want %d:\n%s", step.worker, n, step.times, &log)
		}
	}
}
