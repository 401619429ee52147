package runtimeapi

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// fakeHAProxy answers on its admin socket the way 2.6 does.
type fakeHAProxy struct {
	mu      sync.Mutex
	pid     int
	started time.Time
	refuses bool              // no socket
	hangs   bool              // accepts and says nothing
	missing map[string]bool   // servers that it does not have
	at      map[string]string // where servers are; others are at 10.0.0.1, 10.0.0.2 …
	retired map[string]bool   // servers in MAINT without checks
	ready   map[string]bool   // servers whose agent's "ready" is under way, and ends the next MAINT
	looks   int               // how often its servers were listed
	state   map[string]string // by server: what the last command made of it
	level   string            // of the socket; "" admin
	ending  bool              // a reload has replaced the process, which still answers
	said    []string          // commands, without those that only look
	dials   []time.Time
}

func (f *fakeHAProxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials = append(f.dials, time.Now())
	if f.refuses {
		return nil, errors.New("connection refused")
	}
	client, srv := net.Pipe()
	go f.answer(srv)
	return client, nil
}

func (f *fakeHAProxy) answer(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	f.mu.Lock()
	if f.hangs {
		f.mu.Unlock()
		_, _ = in.ReadString('\n') // until the client gives up
		return
	}
	var out strings.Builder
	for command := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), ";") {
		out.WriteString(f.carryOut(command))
	}
	f.mu.Unlock()
	_, _ = c.Write([]byte(out.String()))
}

func (f *fakeHAProxy) carryOut(command string) string {
	switch command {
	case "show info":
		stopping := map[bool]int{true: 1}[f.ending]
		return fmt.Sprintf("Name: HAProxy\nPid: %d\nUptime_sec: %d\nStopping: %d\n\n", f.pid, int(time.Since(f.started).Seconds()), stopping)
	case "show stat -1 4 -1":
		return "# pxname,svname,qcur,qmax,scur,smax,slim,stot,\nbe_main_replica,n1,0,0,3,2,,2,\nbe_main_replica,n2,0,0,4,2,,2,\"two\nlines\"\nother,n1,0,0,9,2,,2,\n\n"
	case "show servers state":
		f.looks++
		return f.servers()
	case "show cli level":
		return cmp.Or(f.level, "admin") + "\n\n"
	}
	f.said = append(f.said, command)
	w := strings.Fields(command)
	srv := w[2]
	if w[0] == "shutdown" {
		srv = w[3]
	}
	if f.level != "" {
		return "Permission denied\n\n"
	}
	if f.missing[srv] {
		return "No such server.\n\n"
	}
	if f.retired[srv] && w[3] == "agent" {
		return "'set server <srv> agent' cannot be set: agent checks are not enabled on this server.\n\n"
	}
	switch {
	case w[0] == "disable" && w[1] == "agent":
		delete(f.ready, srv)
	case w[0] == "set":
		f.state[srv] = strings.TrimSpace(w[3] + " " + w[4])
		if f.state[srv] == "state maint" && !f.ready[srv] {
			f.retired[srv] = true
		}
	}
	return "\n"
}

// servers is the list of servers: n1 to n5 in each backend, without those that are missing.
func (f *fakeHAProxy) servers() string {
	out := "1\n# be_name srv_name srv_addr srv_admin_state srv_agent_state srv_port\n"
	for _, backend := range []string{"be_main_primary", "be_main_replica"} {
		for i := range 5 {
			name := fmt.Sprintf("n%d", i+1)
			ref := backend + "/" + name
			if f.missing[ref] {
				continue
			}
			state := "0 22"
			if f.retired[ref] {
				state = "1 18"
			}
			out += fmt.Sprintf("%s %s %s %s 5432\n", backend, name, cmp.Or(f.at[ref], fmt.Sprintf("10.0.0.%d", i+1)), state)
		}
	}
	return out + "\n"
}

func (f *fakeHAProxy) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// heard returns what was said since the last call.
func (f *fakeHAProxy) heard() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	said := f.said
	f.said = nil
	return said
}

// bubble runs a pusher to a fake HAProxy under fake time.
func bubble(t *testing.T, test func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder)) {
	bubbleOf(t, Options{}, test)
}

// bubbleOf is bubble with some options set.
func bubbleOf(t *testing.T, o Options, test func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeHAProxy{pid: 1, started: time.Now(), state: map[string]string{}, retired: map[string]bool{}}
		views := new(latest.Map[string, topology.View])
		log := new(strings.Builder)
		o.Sockets, o.Views, o.Now = []string{"/run/haproxy.sock"}, views, topology.NewTicker(time.Now)
		o.Dial, o.Logger = f.dial, slog.New(slog.NewTextHandler(log, nil))
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		test(f, views, p, log)
		cancel()
		if err := <-done; err != nil {
			t.Error("Run:", err)
		}
	})
}

func show(views *latest.Map[string, topology.View], s *topology.Snapshot) {
	views.Set(s.Cluster, &topology.View{Snapshot: s, ValidUntil: 1 << 62})
}

func replicas(verdicts ...topology.Verdict) topology.PoolVerdicts {
	return pool("replica", topology.ModeRead, verdicts...)
}
