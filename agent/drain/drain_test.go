package drain

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second
	ender    = "ender" // the role that ends sessions
	password = "open-sesame"
)

var n2 = maintenance.Target{Cluster: "main", Node: "n2"}

// site is a real cluster that tests share, one after another.
type site struct {
	lab     *lab.Lab
	cluster *lab.Cluster
}

func newSite(t *testing.T) *site {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedPostgres)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	const login = " LOGIN PASSWORD '" + password + "'"
	err = c.Primary().Exec(t.Context(), "CREATE ROLE "+ender+login, "GRANT pg_monitor, pg_signal_backend TO "+ender,
		"CREATE ROLE weak"+login, "GRANT pg_monitor TO weak", "CREATE ROLE blind"+login, "GRANT pg_signal_backend TO blind",
		"CREATE ROLE exporter"+login, "CREATE ROLE boss SUPERUSER"+login, "CREATE ROLE walker REPLICATION"+login)
	if err == nil {
		err = c.WaitStreaming(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &site{l, c}
}

// rig is a Runner on a site, with its records; each test has its own.
type rig struct {
	t    *testing.T
	site *site
	dir  string
	book *maintenance.Book
	log  logtest.Log
	*Runner
	stop func()

	ahead  atomic.Int64 // how far the clock runs ahead
	mu     sync.Mutex   // guards everything below
	judged Judged
	setup  Setup
	// lose makes the server's answer to the next end vanish after it was done.
	lose bool
	// answer is given to ends in place of the server, which does not hear of them.
	answer func() (string, error)
	write  func(string, []byte) error
}

func (s *site) rig(t *testing.T, node string) *rig {
	t.Helper()
	r := &rig{t: t, site: s, dir: t.TempDir()}
	r.setup = Setup{Login: r.login(ender), Own: func(string) []string { return []string{ender, "pgsteer"} }, Keep: []string{"exporter"}}
	r.book = maintenance.Open(maintenance.Options{
		Path: filepath.Join(r.dir, "maintenance.json"), Read: os.ReadFile, Now: r.now, Changed: func() { r.Wake() },
	})
	r.book.Share(nil)
	r.up()
	t.Cleanup(func() { r.stop() })
	r.judge(node)
	return r
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

// up starts a Runner, as the agent's start does.
func (r *rig) up() {
	r.Runner = Open(Options{
		Path: filepath.Join(r.dir, "drains.json"), Read: os.ReadFile, Now: r.now, By: "here", Records: r.book.Set, Confirm: r.book.Confirm,
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
		Write: func(path string, b []byte) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.write != nil {
				return r.write(path, b)
			}
			return os.WriteFile(path, b, 0o600)
		},
		Judged: func(string, string) (Judged, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.judged, nil
		},
		Setup: func() Setup {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.setup
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	r.stop = func() { cancel(); wg.Wait() }
}

// look is a login that can lose answers.
type look struct {
	*postgres.Look
	r *rig
}

func (l look) Ask(ctx context.Context, sql string, args ...string) (string, error) {
	l.r.mu.Lock()
	answer := l.r.answer
	l.r.mu.Unlock()
	if answer != nil && sql == endQuery {
		return answer()
	}
	text, err := l.Look.Ask(ctx, sql, args...)
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if l.r.lose && sql == endQuery {
		l.r.lose = false
		return "", errors.New("the link broke")
	}
	return text, err
}

func (r *rig) login(role string) func(context.Context, string, topology.Node) (Session, error) {
	return func(ctx context.Context, cluster string, n topology.Node) (Session, error) {
		l, f := postgres.Login(ctx, postgres.Options{
			Cluster: cluster, Node: n.Name, Address: n.Address, User: role, Password: func() string { return password }, Now: topology.NewTicker(time.Now),
		})
		if f != nil {
			return nil, errors.New(f.Text)
		}
		return look{l, r}, nil
	}
}

// judge has a node judged as what it is.
func (r *rig) judge(name string) {
	r.t.Helper()
	j := r.really(name)
	r.change(func() { r.judged = j })
}

// really is what a node is.
func (r *rig) really(name string) Judged {
	r.t.Helper()
	n := r.node(name)
	at, err := topology.ParseAddress(n.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := r.login(ender)(r.t.Context(), "main", topology.Node{Name: name, Address: at})
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	p, err := s.Probe()
	if err != nil {
		r.t.Fatal(err)
	}
	return Judged{Node: topology.Node{Name: name, Address: at}, Cluster: "main", SystemID: p.SystemID, InRecovery: p.InRecovery, Timeline: p.Timeline}
}

func (r *rig) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *rig) node(name string) *lab.Node {
	for _, n := range r.site.cluster.Nodes() {
		if n.Name() == name {
			return n
		}
	}
	r.t.Fatalf("no node %s", name)
	return nil
}

// client is a session at a node.
func (r *rig) client(node, role, application string) *pgx.Conn {
	r.t.Helper()
	c, err := pgx.Connect(r.t.Context(), r.node(node).DSN(role)+"&password="+password+"&application_name="+application)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (r *rig) exec(c *pgx.Conn, sql string) {
	r.t.Helper()
	if _, err := c.Exec(r.t.Context(), sql); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// state is "" when a session lives, else the SQLSTATE by which it ended.
func (r *rig) state(c *pgx.Conn) string {
	_, err := c.Exec(r.t.Context(), "SELECT 1")
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &pg):
		return pg.Code
	}
	return err.Error()
}

// begin takes n2 out and drains it, and returns when balancers had their time; then the
// deadline begins.
func (r *rig) begin(deadline time.Duration, want maintenance.Sessions) {
	r.t.Helper()
	id := r.beginNow(settleFor+deadline, want)
	r.until("the drain to be seen", func(Report) bool {
		r.Runner.mu.Lock()
		defer r.Runner.mu.Unlock()
		now := r.drains[n2].now
		return now.Report.ID == id && !now.Seen.IsZero()
	})
	r.ahead.Add(int64(settleFor))
	r.Wake()
}

// beginNow returns the drain's ID as soon as the records say so.
func (r *rig) beginNow(deadline time.Duration, want maintenance.Sessions) string {
	r.t.Helper()
	want.Deadline = r.now().Add(deadline)
	s, err := r.Prepare(r.t.Context(), n2, want)
	if err != nil {
		r.t.Fatal(err)
	}
	r.record(func(set maintenance.Set) (maintenance.Set, bool) {
		set, _, changed := set.Start(maintenance.Record{Target: n2, Sessions: s}, r.now())
		return set, changed
	})
	return s.ID
}

func (r *rig) record(edit maintenance.Edit) {
	r.t.Helper()
	if err := r.book.Change(r.t.Context(), n2, edit); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) end() {
	r.record(func(set maintenance.Set) (maintenance.Set, bool) {
		set, _, changed := set.End(n2, "", r.now())
		return set, changed
	})
	r.Settle(n2)
}

func (r *rig) report() Report {
	rep, _ := r.Report(n2)
	return rep
}

func (r *rig) until(what string, ok func(Report) bool) Report {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		rep := r.report()
		if ok(rep) {
			return rep
		}
		if time.Now().After(end) {
			r.t.Fatalf("waited %s for %s; the report is %+v\n%s", patience, what, rep, r.log.String())
		}
	}
}

func (r *rig) over() Report {
	r.t.Helper()
	return r.until("its end", func(rep Report) bool { return rep.Phase.Over() })
}

// names are the applications of sessions, in the order of the report.
func names(all []Client) string {
	var out []string
	for _, c := range all {
		out = append(out, c.Application)
	}
	return strings.Join(out, " ")
}

func endedNames(r Report) map[string]string {
	out := make(map[string]string)
	for _, c := range r.Ended {
		out[c.Application] += c.Why
	}
	return out
}
