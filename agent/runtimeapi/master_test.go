package runtimeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// fakeMaster has one old worker, 7, with sessions, and answers as 2.6 does.
type fakeMaster struct {
	mu       sync.Mutex
	sessions map[string]string // number: backend/server
	refuses  bool              // the master starts anew, or is not there
	denies   bool              // its socket has level operator
	gone     bool              // the worker ends between "show proc" and the next question
	hangs    bool              // the master takes questions and answers none
	more     string            // a further old worker in "show proc", 6, which hangs
	longest  int               // bytes of the longest line it was sent
	looks    int
}

func (f *fakeMaster) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses {
		return nil, errors.New("connection refused")
	}
	client, srv := net.Pipe()
	go func() {
		defer srv.Close()
		in := bufio.NewReader(srv)
		line, _ := in.ReadString('\n')
		if f.mute(line) {
			_, _ = in.ReadString('\n') // until the client gives up
			return
		}
		_, _ = srv.Write([]byte(f.answers(strings.TrimSpace(line))))
	}()
	return client, nil
}

func (f *fakeMaster) mute(line string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hangs || strings.HasPrefix(line, "@!6 ")
}

func (f *fakeMaster) answers(line string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest = max(f.longest, len(line))
	var out strings.Builder
	for command := range strings.SplitSeq(line, ";") {
		switch what, isOld := strings.CutPrefix(command, "@!7 "); {
		case command == "show proc":
			f.looks++
			out.WriteString("#<PID> <type>\n1 master 1 [failed: 0]\n# workers\n8 worker 0\n# old workers\n7 worker 1\n" + f.more + "\n")
		case !isOld || f.gone:
			return "Can't find the target PID matching the prefix '@!7'\n"
		case what == "show sess":
			out.WriteString("0x1: proto=sockpair src=unix:3 fe=GLOBAL be=<NONE> srv=<none> ts=00\n")
			for id, srv := range f.sessions {
				be, name, _ := strings.Cut(srv, "/")
				fmt.Fprintf(&out, "%s: proto=tcpv4 src=127.0.0.1:1 fe=f be=%s srv=%s ts=00 age=2s\n", id, be, name)
			}
			out.WriteString("\n")
		case f.denies:
			out.WriteString("Permission denied\n\n")
		default:
			id := strings.TrimPrefix(what, "shutdown session ")
			if _, ok := f.sessions[id]; !ok {
				out.WriteString("No such session (use 'show sess').\n")
			}
			delete(f.sessions, id)
			out.WriteString("\n")
		}
	}
	return out.String()
}

func (f *fakeMaster) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// ended waits for a time and returns how many sessions are left.
func (f *fakeMaster) after(d time.Duration) int {
	time.Sleep(d)
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions)
}

func masterBubble(t *testing.T, test func(f *fakeMaster, views *latest.Map[string, topology.View], status func() MasterStatus, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		f, views, log := &fakeMaster{sessions: map[string]string{}}, new(latest.Map[string, topology.View]), new(strings.Builder)
		p, err := New(Options{
			Masters: []string{"/run/master.sock"}, Views: views, Now: topology.NewTicker(time.Now),
			Dial: f.dial, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		test(f, views, func() MasterStatus { return p.Masters()[0] }, log)
		cancel()
		<-done
	})
}

func TestOldWorkersAreSwept(t *testing.T) {
	masterBubble(t, func(f *fakeMaster, views *latest.Map[string, topology.View], status func() MasterStatus, _ *strings.Builder) {
		f.set(func() {
			for i := range 1000 { // more than one line can end
				f.sessions[fmt.Sprintf("0x7f00%08x", i)] = "be_main_replica/n1"
			}
			f.sessions["0xa"], f.sessions["0xb"], f.sessions["0xc"] = "be_main_replica/n2", "be_main_replica/n3", "be_other/n1"
		})
		show(views, snapshot(1, 1, replicas(down, drain, undecided)))
		if left := f.after(0); left != 3 {
			t.Errorf("%d sessions are left at once, want those of n2, n3 and of who is not ours", left)
		}
		if f.longest > most {
			t.Errorf("a line of %d bytes", f.longest)
		}
		if st := status(); st.Old != 1 || st.Ended != 1000 || st.Sessions != (Sessions{Down: 1000, Draining: 1}) {
			t.Errorf("status %+v", st)
		}
		f.set(func() { f.sessions["0xd"] = "be_main_replica/n1" }) // it was on its way
		if left := f.after(300 * time.Millisecond); left != 3 {
			t.Errorf("%d sessions are left, want the late one ended", left)
		}
		views.Refresh("main", &topology.View{Snapshot: snapshot(1, 1, replicas(down)), ValidUntil: 1})
		f.set(func() { f.sessions["0xe"] = "be_main_replica/n1" })
		if left := f.after(5 * time.Second); left != 4 {
			t.Errorf("%d sessions are left, want none ended by a view past its end", left)
		}
	})
}

// Only what ends sessions has the old workers looked at between two intervals.
func TestOldWorkersAreLeftInPeace(t *testing.T) {
	masterBubble(t, func(f *fakeMaster, views *latest.Map[string, topology.View], _ func() MasterStatus, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up)))
		f.after(time.Second)
		f.set(func() { f.looks = 0 })
		for i := range uint64(100) { // weights move
			show(views, snapshot(2+i, 1, replicas(up)))
			f.after(10 * time.Millisecond)
		}
		if f.looks < 3 || f.looks > 5 {
			t.Errorf("%d looks in a second of small changes, want one in 250 ms", f.looks)
		}
		f.set(func() { f.looks = 0 })
		for i := range uint64(10) {
			show(views, snapshot(200+i, 200+i, replicas(up)))
			f.after(0)
		}
		if f.looks != 10 {
			t.Errorf("%d looks after 10 urgent changes", f.looks)
		}
	})
}

// A lost writer's sessions in old workers end within a second or so, even when the
// master, or another old worker, hangs just then.
func TestOldWorkersAreSweptDespiteAHang(t *testing.T) {
	masterBubble(t, func(f *fakeMaster, views *latest.Map[string, topology.View], _ func() MasterStatus, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up)))
		f.after(time.Second)
		f.set(func() { f.hangs, f.sessions["0xa"] = true, "be_main_replica/n1" })
		show(views, snapshot(2, 2, replicas(down)))
		f.after(500 * time.Millisecond)
		f.set(func() { f.hangs = false })
		if left := f.after(900 * time.Millisecond); left != 0 { // the question that hung, and a pause
			t.Error("the session outlives a master that hung for half a second")
		}
		f.set(func() { f.more, f.sessions["0xb"] = "6 worker 1\n", "be_main_replica/n1" })
		show(views, snapshot(3, 3, replicas(down)))
		if left := f.after(10 * time.Millisecond); left != 0 {
			t.Error("the session waits for another worker that hangs")
		}
	})
}

func TestMasterOutOfReach(t *testing.T) {
	masterBubble(t, func(f *fakeMaster, views *latest.Map[string, topology.View], status func() MasterStatus, log *strings.Builder) {
		show(views, snapshot(1, 1, replicas(down)))
		f.after(time.Second)
		f.set(func() { f.refuses = true }) // a reload
		f.after(4 * time.Second)
		if st := status(); st.Err != nil {
			t.Errorf("a reload is no trouble: %v", st.Err)
		}
		f.after(time.Minute)
		if n := strings.Count(log.String(), "level=WARN"); status().Err == nil || n != 1 {
			t.Errorf("status %+v, %d warnings, want 1:\n%s", status(), n, log)
		}
		f.set(func() { f.refuses, f.gone = false, true })
		f.after(time.Second)
		if st := status(); st.Err != nil {
			t.Errorf("a worker that ends is no trouble: %v", st.Err)
		}
		f.set(func() { f.gone, f.denies, f.sessions["0xa"] = false, true, "be_main_replica/n1" })
		f.after(time.Second)
		if st := status(); st.Err == nil || !strings.Contains(st.Err.Error(), "level") || st.Ended != 0 {
			t.Errorf("without the right to end sessions: %+v", st)
		}
	})
}

// HAProxy lists an IPv4 address that was written as an IPv6 one (::ffff:10.0.0.1) as
// IPv4; a node that leaves it has left what the old worker has.
func TestMappedAddressIsLeftToo(t *testing.T) {
	n1 := server{Backend: "be_main_replica", Server: "n1"}
	o, m := withDefaults(Options{}), newMoves()
	at := func(host string) map[server]bool {
		s := snapshot(1, 1, replicas(up))
		s.Pools[0].Nodes[0].Address = topology.Address{Host: host, Port: 5432}
		m.note(&o, s)
		m.of[7] = map[server]running{n1: {address: netip.MustParseAddrPort("10.0.0.1:5432")}}
		moved, err := m.in(t.Context(), haproxycli.Socket{}, 7)
		if err != nil {
			t.Fatal(err)
		}
		return moved
	}
	for _, step := range []struct {
		host string
		want bool
	}{{"::ffff:10.0.0.1", false}, {"10.0.0.1", false}, {"::ffff:10.0.0.1", false}, {"10.0.0.2", true}} {
		if moved := at(step.host); moved[n1] != step.want {
			t.Errorf("the node is at %s: the old worker has moved servers %v, want %t", step.host, moved, step.want)
		}
	}
}
