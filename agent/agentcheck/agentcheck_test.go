package agentcheck

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a set of views under a clock that the test moves.
type world struct {
	views latest.Map[string, topology.View]
	now   topology.Mono
}

func (w *world) tick() topology.Clock { return topology.Clock{Mono: w.now} }

func (w *world) set(s *topology.Snapshot) {
	w.views.Set(s.Cluster, &topology.View{Snapshot: s, ValidUntil: w.now.Add(time.Minute)})
}

func newWorld(snapshots ...*topology.Snapshot) *world {
	w := &world{now: topology.Mono(time.Second)}
	for _, s := range snapshots {
		w.set(s)
	}
	return w
}

func (w *world) server(tb testing.TB, o Options) *Server {
	tb.Helper()
	o.Views, o.Now = &w.views, w.tick
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func verdict(node string, v topology.Verdict, code topology.Code, text string) topology.NodeVerdict {
	return topology.NodeVerdict{Node: node, Verdict: v, Weight: 100, Reasons: []topology.Reason{{Code: code, Text: text}}}
}

// cluster has a writer n1, a replica n2 and a lagging replica n3, at 10.0.0.1 to 3.
func cluster(name string) *topology.Snapshot {
	half := verdict("n2", topology.Up, topology.CodeLagOverride, "lag 70MB > 64MB but last")
	half.Weight = 50
	s := &topology.Snapshot{
		Cluster: name, Complete: true,
		Pools: []topology.PoolVerdicts{
			{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{
				verdict("n1", topology.Up, topology.CodeWriter, "named by patroni"),
				verdict("n2", topology.Down, topology.CodeWrongRole, "in recovery"),
				verdict("n3", topology.Down, topology.CodeWrongRole, "in recovery"),
			}},
			{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{
				verdict("n1", topology.Down, topology.CodeWrongRole, ""),
				half,
				verdict("n3", topology.Drain, topology.CodeLag, "lag 25MB > 16MB"),
			}},
		},
	}
	for _, p := range s.Pools {
		for i := range p.Nodes {
			p.Nodes[i].Address = topology.Address{Host: fmt.Sprintf("10.0.0.%d", i+1), Port: 5432}
		}
	}
	return s
}

func TestAnswer(t *testing.T) {
	undecided := cluster("new")
	undecided.Pools[0].Nodes[0].Verdict = topology.Undecided
	undecided.Complete = false
	noWriter := cluster("headless")
	noWriter.Pools[0].Nodes[0] = verdict("n1", topology.Drain, topology.CodeNoLeader, "leader key absent")
	w := newWorld(cluster("main"), undecided, noWriter)
	s := w.server(t, Options{})
	for _, tt := range []struct{ name, request, want string }{
		{"writer", "main primary n1", "up 100%\n"},
		{"standby in write pool", "main primary n2", "down #in recovery\n"},
		{"weight with reason", "main replica n2", "up 50% #lag 70MB > 64MB but last\n"},
		{"drain", "main replica n3", "up 0% #lag 25MB > 16MB\n"},
		{"reason without text", "main replica n1", "down #wrong_role\n"},
		{"odd blanks", "\tmain  primary n1 \r", "up 100%\n"},
		{"guard of an open pool", "main primary !guard", "down #open: n1 is up\n"},
		{"guard of a pool that drains", "headless primary !guard", "up 100% #shut: no node is up\n"},
		{"undecided", "new primary n1", ""},
		{"guard of an undecided pool", "new primary !guard", ""},
		{"unknown node of an incomplete cluster", "new primary n9", ""},
		{"unknown node", "main primary n9", "down #unknown main/primary/n9\n"},
		{"unknown pool", "main nosuch n1", "down #unknown main/nosuch/n1\n"},
		{"guard of an unknown pool", "main nosuch !guard", "up 100% #unknown main/nosuch/!guard\n"},
		{"unknown cluster while another is incomplete", "nosuch primary n1", ""},
		{"malformed while a cluster is incomplete", "GET / HTTP/1.1 x", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second answer comes from the table
				if got := string(s.Answer([]byte(tt.request))); got != tt.want {
					t.Errorf("Answer(%q) = %q, want %q", tt.request, got, tt.want)
				}
			}
		})
	}
}

func TestAnswerUnknownOnceComplete(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{})
	for request, want := range map[string]string{
		"nosuch primary n1":             "down #unknown nosuch/primary/n1\n",
		"x":                             "down #unknown x\n",
		"":                              "down #unknown\n",
		"a,b #c d\xff":                  "down #unknown a;b/.c/d?\n",
		strings.Repeat("y", maxRequest): "down #unknown " + strings.Repeat("y", maxLine-len("down #unknown \n")) + "\n",
	} {
		if got := string(s.Answer([]byte(request))); got != want {
			t.Errorf("Answer(%q) = %q, want %q", request, got, want)
		}
	}
	if got := s.Counters().Unknown.Load(); got != 5 {
		t.Errorf("counted %d unknown requests, want 5", got)
	}
}

// A name that nobody knows is logged once a minute, however often it is asked for.
func TestUnknownNamesAreLogged(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(cluster("main"))
	s := w.server(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, step := range []time.Duration{0, time.Second, 58 * time.Second, time.Second, time.Minute - 1} {
		w.now = w.now.Add(step)
		w.set(cluster("main"))
		s.Answer([]byte("main primary n9"))
	}
	if n := strings.Count(log.String(), "request=\"main primary n9\""); n != 2 {
		t.Errorf("logged %d times in two minutes, want 2:\n%s", n, &log)
	}
}

func TestConfiguredClusterWithoutViewIsSilent(t *testing.T) {
	w := newWorld(cluster("main"))
	s := w.server(t, Options{Clusters: func() []string { return []string{"main", "late"} }})
	for _, request := range []string{"late primary n1", "nosuch primary n1"} {
		if got := s.Answer([]byte(request)); got != nil {
			t.Errorf("Answer(%q) = %q before every cluster has a view, want silence", request, got)
		}
	}
	w.set(cluster("late"))
	if got := string(s.Answer([]byte("late primary n1"))); got != "up 100%\n" {
		t.Errorf("after the view: %q", got)
	}
	w.views.Delete("late")
	if got := s.Answer([]byte("late primary n1")); got != nil {
		t.Errorf("after the view went: %q, want silence", got)
	}
}

func TestStaleViewIsSilentAndWakesUp(t *testing.T) {
	w := newWorld(cluster("main"))
	s := w.server(t, Options{})
	for _, request := range []string{"main primary n1", "main primary n9", "nosuch primary n1", "main primary !guard"} {
		before := string(s.Answer([]byte(request)))
		w.now = w.now.Add(2 * time.Minute)
		if got := s.Answer([]byte(request)); got != nil {
			t.Errorf("Answer(%q) = %q from a view past its end, want silence", request, got)
		}
		w.now = w.now.Add(-2 * time.Minute)
		if got := string(s.Answer([]byte(request))); got != before {
			t.Errorf("Answer(%q) = %q when valid again, want %q", request, got, before)
		}
	}
}

func TestNewSnapshotAnswersAtOnce(t *testing.T) {
	w := newWorld(cluster("main"))
	s := w.server(t, Options{})
	s.Answer([]byte("main primary n1"))
	next := cluster("main")
	next.Pools[0].Nodes[0] = verdict("n1", topology.Down, topology.CodeFenced, "writable, but n2, is named # now\nreally")
	w.set(next)
	want := "down #writable; but n2; is named . now really\n"
	if got := string(s.Answer([]byte("main primary n1"))); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzLine holds what HAProxy needs of every answer: one line that ends, short,
// printable, one comment that is a word of its own, no separator in it.
func FuzzLine(f *testing.F) {
	f.Add("lag 25MB > 16MB")
	f.Add("a\nb, # é \x00 ,drain")
	f.Add(strings.Repeat("é", 200))
	f.Fuzz(func(t *testing.T, text string) {
		got := line("up 0%", text)
		switch {
		case len(got) > maxLine:
			t.Errorf("%d bytes: %q", len(got), got)
		case bytes.IndexByte(got, '\n') != len(got)-1:
			t.Errorf("not one line: %q", got)
		case bytes.ContainsAny(got, ",\r\t\x00") || bytes.Count(got, []byte("#")) > 1:
			t.Errorf("separators in %q", got)
		case text != "" && !bytes.HasPrefix(got, []byte("up 0% #")):
			t.Errorf("comment is no word: %q", got)
		}
	})
}

// serve runs a server on a loopback port and returns how to ask it.
func serve(tb testing.TB, s *Server, bound *Key) (ask func(request string) (net.Conn, *net.TCPConn)) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		if bound != nil {
			done <- s.ServeBound(ctx, ln, func() Key { return *bound })
			return
		}
		done <- s.Serve(ctx, ln)
	}()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error("Serve:", err)
		}
	})
	return func(request string) (net.Conn, *net.TCPConn) {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			tb.Fatal(err)
		}
		return c, c.(*net.TCPConn)
	}
}

func readAll(tb testing.TB, c net.Conn) string {
	tb.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		tb.Fatalf("after %q: %v", b, err)
	}
	return string(b)
}

func TestServe(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{ReadQuiet: 20 * time.Millisecond, Timeout: 5 * time.Second})
	ask := serve(t, s, nil)
	for request, want := range map[string]string{
		"main primary n1\n":                  "up 100%\n",
		"main primary n1":                    "up 100%\n", // no line end: a pause ends it
		"main primary n2\r\n":                "down #in recovery\n",
		"main primary n3\nmain primary n1\n": "down #in recovery\n",
		strings.Repeat("z", maxRequest):      "down #unknown " + strings.Repeat("z", maxLine-len("down #unknown \n")) + "\n",
	} {
		c, _ := ask(request)
		if got := readAll(t, c); got != want {
			t.Errorf("%.30q: got %q, want %q", request, got, want)
		}
	}
	c, tcp := ask("main primary n1")
	tcp.CloseWrite()
	if got := readAll(t, c); got != "up 100%\n" {
		t.Errorf("half-closed request: got %q", got)
	}
	c, tcp = ask("")
	tcp.CloseWrite()
	if got := readAll(t, c); got != "" {
		t.Errorf("no request: got %q, want silence", got)
	}
	if got := s.Counters().Empty.Load(); got != 1 {
		t.Errorf("counted %d empty requests, want 1", got)
	}
}

// A request that is far too long is answered, counted, and its answer arrives: what
// is still unread when the server closes would reset the connection. The client of
// this test reads nothing before it has sent everything.
func TestOversizedRequest(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{})
	c, _ := serve(t, s, nil)(strings.Repeat("z", 8*maxRequest))
	if got := readAll(t, c); !strings.HasPrefix(got, "down #unknown zzz") || len(got) != maxLine {
		t.Errorf("answered %q", got)
	}
	if n := s.Counters(); n.Oversized.Load() != 1 || n.Unknown.Load() != 1 {
		t.Errorf("oversized %d, unknown %d, want 1 and 1", n.Oversized.Load(), n.Unknown.Load())
	}
}

func TestSilentClientIsClosedUnanswered(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{Timeout: 50 * time.Millisecond})
	c, _ := serve(t, s, nil)("")
	if got := readAll(t, c); got != "" {
		t.Errorf("got %q, want silence", got)
	}
}

func TestSlowClientCannotHoldAConnection(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{ReadQuiet: time.Hour, Timeout: 60 * time.Millisecond})
	start := time.Now()
	c, _ := serve(t, s, nil)("main prim")
	readAll(t, c)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("connection held for %s with a timeout of 60 ms", took)
	}
}

func TestConnectionLimit(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{MaxConns: 1, ReadQuiet: time.Hour, Timeout: time.Hour})
	ask := serve(t, s, nil)
	first, _ := ask("main primary ")
	for s.loop.Open() == 0 { // until the first is accepted
		c, _ := ask("")
		c.Close()
	}
	second, _ := ask("")
	if b, _ := io.ReadAll(second); len(b) > 0 {
		t.Errorf("connection above the limit got %q", b)
	}
	io.WriteString(first, "n1\n")
	if got := readAll(t, first); got != "up 100%\n" {
		t.Errorf("connection within the limit got %q", got)
	}
	if s.Counters().Rejected.Load() == 0 {
		t.Error("rejected connections are not counted")
	}
}

func TestServeBound(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{})
	ask := serve(t, s, &Key{"main", "replica", "n3"})
	var got []string
	for _, request := range []string{"", "main primary n1\n", "GET / HTTP/1.0\r\n\r\n"} {
		c, _ := ask(request)
		got = append(got, readAll(t, c))
		c.Close()
	}
	want := "up 0% #lag 25MB > 16MB\n"
	if diff := cmp.Diff([]string{want, want, want}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerAllocates(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{})
	for _, request := range [][]byte{[]byte("main primary n1"), []byte("main primary n1 10.0.0.1:5432")} {
		s.Answer(request)
		if n := testing.AllocsPerRun(100, func() { s.Answer(request) }); n != 0 {
			t.Errorf("%q: %v allocations an answer, want 0", request, n)
		}
	}
}
