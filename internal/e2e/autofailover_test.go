package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/record"
	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// autoRig is a cluster under pg_auto_failover with an agent in front, which reads
// the monitor by the views and the role of the manual.
type autoRig struct {
	*rig
	auto  *lab.AutoFailover
	whole *testing.T
	// interval of reads of the monitor that nothing asked for; empty: the default.
	interval string
}

func newAutoRig(t *testing.T, nodes int) *autoRig {
	t.Helper()
	p := autoRigOf(t, nodes, lab.NeedAutoFailover)
	p.whole = t
	p.steer("")
	p.up()
	return p
}

// autoRigOf starts the monitor and the nodes, and makes the role that reads it.
func autoRigOf(tb testing.TB, nodes int, needs ...string) *autoRig {
	tb.Helper()
	p := &autoRig{rig: newRig(tb, needs...)}
	var err error
	o := lab.AutoFailoverOptions{Nodes: nodes}
	if d := os.Getenv("PGSTEER_UNHEALTHY_TIMEOUT"); d != "" {
		o.Settings = map[string]string{"node_considered_unhealthy_timeout": d}
	}
	p.auto, err = p.lab.AutoFailover(tb.Context(), o)
	p.do(err)
	p.do(p.auto.Monitor().Exec(tb.Context(), "pg_auto_failover", pgautofailover.Recipe))
	return p
}

// steer writes the agent's configuration, with more of the cluster and beside it.
func (p *autoRig) steer(more string) {
	interval := cmp.Or(p.interval, "2s")
	p.configure(`clusters:
  main:
    authority: pg_auto_failover
    pg_auto_failover: {monitors: ["%s"], interval: %s}
%s`, p.auto.Monitor().Addr(), interval, more)
}

// TestAutoFailover: what pg_auto_failover's monitor decides is followed, no node
// that cannot take writes is ever up for them, and a monitor that is away cuts
// nobody. Each part prints its timeline: what the monitor assigned, what the servers
// were, and what the agent said.
func TestAutoFailover(t *testing.T) {
	p := newAutoRig(t, 2)
	p.settled("n1", "n2")
	p.step("switchover", func() {
		session := p.recorded(func() {
			p.do(p.auto.Decide(p.t.Context(), "perform_failover('default', 0)"))
			p.settled("n2", "n1")
		})
		p.replays(session)
		p.do(session.Mask())
		p.replays(session)
	})
	p.step("the primary's host is killed", func() {
		if is, want := p.explain("main", "n2"), "settings  "+hastySettings()+"\n"; !strings.Contains(is, want) {
			p.t.Errorf("explain lacks %q, the monitor's own settings:\n%s", want, is)
		}
		p.do(p.auto.Node("n2").Kill())
		why := p.explained("n2", "n1 to be the writer", func() bool { return p.view("main").Snapshot.Writer == "n1" })
		for _, want := range []string{
			"unhealthy no: the keeper is not silent for long enough", "its grace after a start is over", "promotion n1, unless",
		} {
			if !strings.Contains(why, want) {
				p.t.Errorf("explain never said %q", want)
			}
		}
		p.is("main", "primary", "n2", topology.Down, "")
		p.do(p.auto.Node("n2").Start(p.t.Context()))
		p.settled("n1", "n2")
	})
	p.step("the standby is in maintenance", func() {
		p.do(p.auto.Decide(p.t.Context(), "start_maintenance(2)"))
		p.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
		p.do(p.auto.WaitStates(p.t.Context(), "n2=maintenance"))
		p.during(500*time.Millisecond, "n2 streams, answers and serves nobody", func() bool {
			v, c := p.verdict("main", "replica", "n2")
			return v == topology.Drain && c == topology.CodeMaintenance
		})
		p.do(p.auto.Decide(p.t.Context(), "stop_maintenance(2)"))
		p.settled("n1", "n2")
	})
	p.step("the standby's receiver is cut", func() {
		p.do(p.auto.Node("n2").Exec(p.t.Context(), "postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"))
		p.is("main", "replica", "n2", topology.Drain, topology.CodeNotStreaming)
		p.do(p.auto.WaitStates(p.t.Context(), "n2=secondary")) // for the monitor all is well
		p.do(p.auto.Node("n2").Exec(p.t.Context(), "postgres", "ALTER SYSTEM RESET primary_conninfo", "SELECT pg_reload_conf()"))
		p.settled("n1", "n2")
	})
	p.step("the primary freezes and wakes up", func() {
		p.do(p.auto.Node("n1").Freeze())
		p.until("n2 to be the writer", func() bool { return p.view("main").Snapshot.Writer == "n2" })
		p.do(p.auto.Node("n1").Thaw())
		p.during(2*time.Second, "n2 alone is up for writes", func() bool {
			writes, _ := p.view("main").Snapshot.Pool("primary")
			return only(writes, "n2")
		})
		p.settled("n2", "n1")
	})
	p.step("the monitor restarts", func() {
		p.do(p.auto.Monitor().Stop(p.t.Context()))
		p.until("the authority to be lost", func() bool { return p.view("main").Snapshot.Authority.State == topology.AuthorityStateLost })
		p.during(time.Second, "n2 stays the writer and n1 serves", func() bool {
			v := p.view("main").Snapshot
			reads, _ := v.Pool("replica")
			return v.Writer == "n2" && only(reads, "n1")
		})
		p.do(p.auto.Monitor().Start(p.t.Context()))
		p.settled("n2", "n1")
	})
}

// TestAutoFailoverOfThree: all standbys are restarted for the election, and the
// winner is writable as soon as it leaves recovery, before its goal says so. With
// number_sync_standbys 1 and both standbys gone commits wait, and the writer stays.
func TestAutoFailoverOfThree(t *testing.T) {
	p := newAutoRig(t, 3)
	p.settled("n1", "n2", "n3")
	p.step("switchover", func() {
		p.do(p.auto.Decide(p.t.Context(), "perform_promotion('default', 'n3')"))
		p.settled("n3", "n1", "n2")
	})
	p.step("both standbys are lost", func() {
		p.do(errors.Join(p.auto.Node("n1").Kill(), p.auto.Node("n2").Kill()))
		p.is("main", "replica", "n1", topology.Down, "")
		p.is("main", "replica", "n2", topology.Down, "")
		conn, err := p.auto.Node("n3").Conn(p.t.Context(), lab.AppUser, "postgres")
		p.do(err)
		defer closeConn(conn)
		ctx, stop := context.WithCancel(p.t.Context())
		defer stop()
		waits := make(chan error, 1)
		go func() {
			_, err := conn.Exec(ctx, "INSERT INTO writes DEFAULT VALUES")
			waits <- err
		}()
		p.until("the alarm that commits wait", func() bool {
			return slices.ContainsFunc(p.view("main").Snapshot.Alarms, func(r topology.Reason) bool { return r.Code == topology.CodeWritesBlocked })
		})
		p.during(time.Second, "n3 stays the writer", func() bool { return p.view("main").Snapshot.Writer == "n3" })
		p.do(p.auto.Node("n1").Start(p.t.Context()))
		p.do(p.auto.Node("n2").Start(p.t.Context()))
		p.do(<-waits)
		p.settled("n3", "n1", "n2")
	})
}

// recorded is what `pgsteer record` sees of a part.
func (p *autoRig) recorded(part func()) *record.Session {
	p.t.Helper()
	ctx, stop := context.WithCancel(p.t.Context())
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.status+tap.Path+"main", nil)
	p.do(err)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	p.do(err)
	defer func() { _ = res.Body.Close() }()
	sessions := make(chan *record.Session, 1)
	go func() {
		s, err := record.Read(ctx, res.Body, nil)
		if err != nil {
			p.t.Error(err)
		}
		sessions <- s
	}()
	part()
	stop()
	return <-sessions
}

// replays holds that a recording, played against the rules, comes to the same.
func (p *autoRig) replays(s *record.Session) {
	p.t.Helper()
	var b bytes.Buffer
	p.do(s.Encode(&b))
	scenario, err := simulate.Parse("record.yaml", b.Bytes())
	p.do(err)
	result, err := scenario.Run()
	p.do(err)
	if result.Expectations == 0 || len(result.Failures) > 0 {
		p.t.Errorf("the replay differs: %v\n%s", result.Failures, &b)
	}
}

// settled waits until the monitor and the agent agree that all is well.
func (p *autoRig) settled(writer string, replicas ...string) {
	p.t.Helper()
	states := []string{writer + "=primary"}
	for _, r := range replicas {
		states = append(states, r+"=secondary")
	}
	p.do(p.auto.WaitStates(p.t.Context(), states...))
	p.until(writer+" to be the writer and the others to serve reads", func() bool {
		v := p.view("main")
		if v == nil || v.Snapshot.Authority.State != topology.AuthorityStateCurrent || v.Snapshot.Writer != writer {
			return false
		}
		reads, _ := v.Snapshot.Pool("replica")
		return only(reads, replicas...) && !reads.Fallback
	})
}

// only reports whether these nodes, by name, are up and no other.
func only(pool topology.PoolVerdicts, nodes ...string) bool {
	return slices.EqualFunc(pool.Up(), nodes, func(v topology.NodeVerdict, name string) bool { return v.Node == name })
}

// step runs a part of the test under the eyes of a witness.
func (p *autoRig) step(name string, part func()) {
	p.whole.Helper()
	ok := p.whole.Run(name, func(t *testing.T) {
		p.t = t
		defer func() { p.t = p.whole }()
		w := p.witness()
		defer w.print(p)
		defer w.end()
		part()
	})
	if !ok {
		p.whole.FailNow()
	}
}

// witness asks every server directly, all the time, and holds the agent's word
// beside theirs.
type witness struct {
	begin time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu    sync.Mutex
	lines []event
}

// event is something that happened.
type event struct {
	at   time.Time
	text string
}

func (w *witness) note(at time.Time, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, event{at, fmt.Sprintf(format, args...)})
}

func (p *autoRig) witness() *witness {
	ctx, stop := context.WithCancel(context.Background())
	w := &witness{begin: time.Now(), stop: stop}
	for _, n := range p.auto.Nodes() {
		w.done.Go(func() { w.watch(ctx, p.t, p, n) })
	}
	w.done.Go(func() { w.follow(ctx, p.t, p) })
	return w
}

func (w *witness) end() {
	w.stop()
	w.done.Wait()
}

// watch asks one server every few milliseconds what it is.
func (w *witness) watch(ctx context.Context, tb testing.TB, p *autoRig, n *lab.AutoFailoverNode) {
	tb.Helper()
	var conn *pgx.Conn
	defer func() { closeConn(conn) }()
	was := ""
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		before := p.view("main").Snapshot
		is := "away"
		if conn == nil || conn.IsClosed() {
			conn, _ = n.Conn(ctx, lab.AppUser, "postgres")
		}
		if conn != nil {
			is = whatIs(ctx, conn)
		}
		after := p.view("main").Snapshot
		// The agent said so before the question and after the answer.
		if is != "writable" && is != "away" && before == after && after.Writer == n.Name() {
			tb.Errorf("%s is up for writes while it is %s", n.Name(), is)
		}
		if is != was {
			w.note(time.Now(), "server   %s is %s", n.Name(), is)
			was = is
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// whatIs returns what a server is, by its own word.
func whatIs(ctx context.Context, c *pgx.Conn) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var recovery bool
	var readOnly string
	err := c.QueryRow(ctx, "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')").Scan(&recovery, &readOnly)
	switch {
	case err != nil:
		return "away"
	case recovery:
		return "in recovery"
	case readOnly == "on":
		return "promoted and read-only"
	}
	return "writable"
}

// follow notes what the agent says, and that it never names two.
func (w *witness) follow(ctx context.Context, tb testing.TB, p *autoRig) {
	tb.Helper()
	was := ""
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		v := p.view("main").Snapshot
		writes, _ := v.Pool("primary")
		if len(writes.Up()) > 1 {
			tb.Errorf("several nodes are up for writes: %s", verdicts(v))
		}
		if is := verdicts(v); is != was {
			w.note(time.Now(), "pgsteer  %s", is)
			was = is
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// verdicts are what a snapshot says, on one line.
func verdicts(s *topology.Snapshot) string {
	all := []string{"authority " + s.Authority.State}
	for _, pool := range s.Pools {
		for _, n := range pool.Nodes {
			all = append(all, fmt.Sprintf("%s %s %s/%s", pool.Pool, n.Node, n.Verdict, n.Reason().Code))
		}
	}
	return strings.Join(all, ", ")
}

// print writes the timeline, with the monitor's own events in it.
func (w *witness) print(p *autoRig) {
	lines := slices.Clone(w.lines)
	conn, err := p.auto.Monitor().Conn(p.t.Context(), "autoctl_node", "pg_auto_failover")
	if err != nil {
		p.t.Errorf("the monitor's events: %v", err)
		return
	}
	defer closeConn(conn)
	rows, err := conn.Query(p.t.Context(), `SELECT eventtime, nodename || ': ' || reportedstate || ' > ' || goalstate FROM pgautofailover.event
		WHERE eventtime >= $1 ORDER BY eventid`, w.begin)
	if err != nil {
		p.t.Errorf("the monitor's events: %v", err)
		return
	}
	var e event
	_, err = pgx.ForEachRow(rows, []any{&e.at, &e.text}, func() error {
		lines = append(lines, event{e.at, "monitor  " + e.text})
		return nil
	})
	if err != nil {
		p.t.Errorf("the monitor's events: %v", err)
	}
	slices.SortStableFunc(lines, func(a, b event) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n%8.3fs  %s", l.at.Sub(w.begin).Seconds(), l.text)
	}
	p.t.Log(b.String())
}
