package pgautofailover

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tables of a monitor, on a PostgreSQL without its extension: what a watcher
// asks of it, and nothing that decides.
const fakeMonitor = `
CREATE ROLE autoctl_node LOGIN;
CREATE SCHEMA pgautofailover;
CREATE TYPE pgautofailover.replication_state AS ENUM ('single', 'wait_primary', 'primary', 'secondary', 'draining', 'demoted', 'catchingup', 'newer');
CREATE TABLE pgautofailover.formation (formationid text PRIMARY KEY, kind text DEFAULT 'pgsql', dbname name DEFAULT 'postgres', number_sync_standbys int DEFAULT 0);
CREATE TABLE pgautofailover.node (
  formationid text DEFAULT 'default', nodeid bigserial PRIMARY KEY, groupid int DEFAULT 0, nodename text, nodehost text, nodeport int, sysidentifier bigint,
  goalstate pgautofailover.replication_state, reportedstate pgautofailover.replication_state, reportedpgisrunning bool DEFAULT true, reporttime timestamptz DEFAULT now(),
  reportedtli int DEFAULT 1, reportedlsn pg_lsn, walreporttime timestamptz DEFAULT now(), health int DEFAULT 1, healthchecktime timestamptz DEFAULT now(),
  statechangetime timestamptz DEFAULT now(), candidatepriority int DEFAULT 50, replicationquorum bool DEFAULT true, nodecluster text DEFAULT 'default');
GRANT USAGE ON SCHEMA pgautofailover TO autoctl_node;
GRANT SELECT ON ALL TABLES IN SCHEMA pgautofailover TO autoctl_node;
INSERT INTO pgautofailover.formation VALUES ('default'), ('shop');
INSERT INTO pgautofailover.node (formationid, groupid, nodename, nodehost, nodeport, sysidentifier, goalstate, reportedstate) VALUES
  ('default', 0, 'n1', '192.0.2.1', 5432, -5, 'primary', 'primary'), ('default', 0, 'n2', '192.0.2.2', 5432, -5, 'secondary', 'secondary'),
  ('shop', 0, 'c1', '192.0.2.3', 5432, 7, 'single', 'single'), ('shop', 1, 'w1', '192.0.2.4', 5432, 8, 'single', 'single');
`

// played is a PostgreSQL that plays the monitor.
type played struct {
	t    *testing.T
	node *lab.Node
}

func newReal(t *testing.T) *played {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedPostgres)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Nodes: 1, ProbeUser: "probe"})
	if err != nil {
		t.Fatal(err)
	}
	r := &played{t, c.Node("n1")}
	r.exec(fakeMonitor)
	// The roles of a lab's cluster log in with passwords, but for app.
	r.exec("GRANT autoctl_node TO app")
	return r
}

func (r *played) exec(sql string) {
	r.t.Helper()
	if err := r.node.Exec(r.t.Context(), sql); err != nil {
		r.t.Fatal(err)
	}
}

// reader is a running watcher.
type reader struct {
	t    *testing.T
	w    *Watcher
	seen chan topology.Observation
}

func (r *played) options() Options {
	at, err := topology.ParseAddress(r.node.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	return Options{
		Cluster: "main", Monitors: []topology.Address{at}, User: lab.AppUser, Database: "postgres", Poll: time.Hour, Timeout: time.Second,
		Now: topology.NewTicker(time.Now), Jitter: func(d time.Duration) time.Duration { return min(d, 50*time.Millisecond) },
	}
}

// start runs a watcher until the test ends.
func start(t *testing.T, o Options) *reader {
	t.Helper()
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &reader{t: t, w: w, seen: make(chan topology.Observation, 1000)}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, func(o topology.Observation) { r.seen <- o }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// next waits for the next observation.
func (r *reader) next() topology.Observation {
	r.t.Helper()
	select {
	case o := <-r.seen:
		return o
	case <-time.After(20 * time.Second):
		r.t.Fatal("nothing was observed")
		panic("unreachable")
	}
}

// until waits for an observation that fits and returns it.
func (r *reader) until(what string, fits func(topology.Observation) bool) topology.Observation {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if o := r.next(); fits(o) {
			return o
		}
	}
	r.t.Fatalf("waited in vain for %s", what)
	panic("unreachable")
}

// namesN1 fits a picture that names n1.
func namesN1(o topology.Observation) bool {
	return o.Authority != nil && o.Authority.Leader == "n1"
}

// TestRealMonitor: what only a real server can prove, on one of them, in order.
func TestRealMonitor(t *testing.T) {
	r := newReal(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the table, by its names", r.testTable},
		{"a notification means read again", r.testNotified},
		{"many notifications are few reads", r.testFlood},
		{"another group", r.testGroup},
		{"a timeout that Go writes in minutes", r.testPatient},
		{"no such formation", r.testAbsent},
		{"a newer version", r.testNewer},
		{"a role that may read nothing", r.testDenied},
		{"the views of the recipe", r.testRecipe},
		{"the server restarts", r.testRestart},
		{"the server freezes", r.testFrozen},
	} {
		if !t.Run(part.name, part.run) {
			t.Fatal("the rest depends on it")
		}
	}
}

func (r *played) testTable(t *testing.T) {
	o := start(t, r.options()).next()
	if o.Failure != nil {
		t.Fatal(o.Failure.Text)
	}
	a := o.Authority
	if o.Source != SourceID("default", 0) || o.Seq != 1 || a.Leader != "n1" || a.SystemID != 1<<64-5 || len(a.Members) != 2 || a.Monitor.Version != "" || !a.Monitor.Assumed {
		t.Errorf("got %+v of %v", a, o.Source)
	}
	n2 := a.Assignment("n2")
	if n2 == nil || n2.Goal != "secondary" || n2.Health != topology.Yes || n2.ReportAge <= 0 || n2.ReportAge > time.Hour || a.Monitor.Uptime <= 0 {
		t.Errorf("n2 is %+v, the monitor %+v", n2, a.Monitor)
	}
	if len(o.Nodes.Nodes) != 2 || o.Nodes.Nodes[1].Address != (topology.Address{Host: "192.0.2.2", Port: 5432}) {
		t.Errorf("nodes are %v", o.Nodes.Nodes)
	}
}

const (
	toDraining = "UPDATE pgautofailover.node SET goalstate = 'draining' WHERE nodename = 'n1'"
	toPrimary  = "UPDATE pgautofailover.node SET goalstate = 'primary' WHERE nodename = 'n1'"
)

// testNotified: the table is read again although no poll is due.
func (r *played) testNotified(t *testing.T) {
	w := start(t, r.options())
	w.until("the first picture", namesN1)
	begin := time.Now()
	r.exec(toDraining + "; SELECT pg_notify('state', '{}')")
	o := w.until("the goal to be seen", func(o topology.Observation) bool { return o.Authority != nil && o.Authority.Leader == "" })
	if took := time.Since(begin); took > 5*time.Second || !o.Authority.Withdrawn("n1") {
		t.Errorf("seen after %s: %+v", took, o.Authority)
	}
	r.exec(toPrimary) // without a notification: only who asks finds it
	w.w.Confirm()
	w.until("the confirmation", namesN1)
}

// testFlood: every role of the database can notify.
func (r *played) testFlood(t *testing.T) {
	w := start(t, r.options())
	w.until("the first picture", namesN1)
	begin := time.Now()
	all := slices.Repeat([]string{"SELECT pg_notify('state', 'x')", "SELECT pg_sleep(0.01)"}, 150)
	if err := r.node.Exec(t.Context(), append(all, toDraining, "SELECT pg_notify('state', 'y')")...); err != nil {
		t.Fatal(err)
	}
	reads := 0
	w.until("the last change", func(o topology.Observation) bool { reads++; return o.Authority != nil && o.Authority.Leader == "" })
	if most := readsBurst + readsPerSecond*time.Since(begin).Seconds() + 1; float64(reads) > most {
		t.Errorf("151 notifications made %d reads, at most %.0f are owed", reads, most)
	}
	r.exec(toPrimary)
}

func (r *played) testPatient(t *testing.T) {
	o := r.options()
	o.Timeout = 90 * time.Second
	if got := start(t, o).next(); got.Failure != nil {
		t.Error(got.Failure.Text)
	}
}

func (r *played) testGroup(t *testing.T) {
	o := r.options()
	o.Formation, o.Group = "shop", 1
	o.Addresses = Addresses{{Host: "192.0.2.4", Port: 5432}: {Host: "db.example", Port: 6432}}
	got := start(t, o).next()
	if got.Failure != nil || got.Authority.Leader != "w1" || len(got.Nodes.Nodes) != 1 || got.Nodes.Nodes[0].Address.Host != "db.example" || got.Source.Name != "shop/1" {
		t.Errorf("got %+v, %+v", got.Nodes, got.Failure)
	}
}

func (r *played) testAbsent(t *testing.T) {
	for _, o := range []struct{ formation, want string }{{"none", "there is no such formation"}, {"shop", "knows no node of the group"}} {
		opts := r.options()
		opts.Formation, opts.Group = o.formation, 9
		got := start(t, opts).next()
		if got.Failure == nil || got.Failure.Class != topology.FailContent || got.Nodes != nil || !strings.Contains(got.Failure.Text, o.want) {
			t.Errorf("got %+v", got.Failure)
		}
	}
}

// testNewer: columns more and less, and a state that nobody knows.
func (r *played) testNewer(t *testing.T) {
	r.exec("ALTER TABLE pgautofailover.node ADD region text, ADD replication_stall_since timestamptz")
	r.exec("UPDATE pgautofailover.node SET goalstate = 'newer' WHERE nodename = 'n2'")
	r.exec("ALTER TABLE pgautofailover.node DROP healthchecktime")
	o := start(t, r.options()).next()
	if o.Failure != nil {
		t.Fatal(o.Failure.Text)
	}
	a := o.Authority.Assignment("n2")
	if o.Authority.Leader != "n1" || a.Writes != topology.Unknown || a.Reads != topology.Drain || a.HealthAge >= 0 {
		t.Errorf("got %+v", a)
	}
	r.exec("UPDATE pgautofailover.node SET goalstate = 'secondary' WHERE nodename = 'n2'")
	r.exec("ALTER TABLE pgautofailover.node ADD healthchecktime timestamptz DEFAULT now()")
}

func (r *played) testDenied(t *testing.T) {
	r.exec("REVOKE autoctl_node FROM app")
	o := start(t, r.options()).next()
	if o.Failure == nil || o.Failure.Class != topology.FailDenied || !strings.Contains(o.Failure.Text, "pgsteer.node") {
		t.Errorf("got %+v", o.Failure)
	}
}

// testRecipe: the role of the manual reads, and can do no more.
func (r *played) testRecipe(t *testing.T) {
	r.exec(Recipe)
	r.exec("GRANT pgsteer TO app")
	o := start(t, r.options()).next()
	if o.Failure != nil || o.Authority.Leader != "n1" || o.Authority.Monitor.SyncStandbys != 0 {
		t.Errorf("got %+v, %+v", o.Authority, o.Failure)
	}
	// The views come before the table, and when they go the table is read again.
	r.exec("GRANT autoctl_node TO app")
	r.exec("CREATE OR REPLACE VIEW pgsteer.formation AS SELECT formationid, kind, dbname, number_sync_standbys + 7 AS number_sync_standbys FROM pgautofailover.formation")
	w := start(t, r.options())
	if got := w.next(); got.Failure != nil || got.Authority.Monitor.SyncStandbys != 7 {
		t.Errorf("the view was not read: %+v, %+v", got.Authority, got.Failure)
	}
	r.exec("ALTER SCHEMA pgsteer RENAME TO elsewhere")
	w.w.Confirm()
	w.until("the failure", func(o topology.Observation) bool { return o.Failure != nil })
	w.until("the table", func(o topology.Observation) bool { return o.Authority != nil && o.Authority.Monitor.SyncStandbys == 0 })
	r.exec("ALTER SCHEMA elsewhere RENAME TO pgsteer")
	err := r.node.Exec(t.Context(), "SET ROLE pgsteer", "TABLE pgautofailover.node")
	if err == nil || !strings.Contains(err.Error(), "permission denied for schema pgautofailover") {
		t.Errorf("the role reads the extension's own table: %v", err)
	}
}

// testRestart: a monitor that goes is a failure, never an empty picture, and is read
// again as soon as it is back, with LISTEN.
func (r *played) testRestart(t *testing.T) {
	w := start(t, r.options())
	w.until("the first picture", namesN1)
	if err := r.node.Stop(t.Context(), lab.Fast); err != nil {
		t.Fatal(err)
	}
	o := w.next()
	if o.Failure == nil || o.Authority != nil || o.Nodes != nil {
		t.Fatalf("got %+v", o)
	}
	if err := r.node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.until("the picture after the restart", namesN1)
	r.exec(toDraining + "; SELECT pg_notify('state', '{}')")
	w.until("a notification on the new session", func(o topology.Observation) bool { return o.Authority != nil && o.Authority.Leader == "" })
	r.exec(toPrimary)
}

// testFrozen: nobody answers on a session that stands; that is found out by the
// next question's deadline.
func (r *played) testFrozen(t *testing.T) {
	o := r.options()
	o.Poll, o.Timeout = 50*time.Millisecond, 300*time.Millisecond
	w := start(t, o)
	w.until("the first picture", namesN1)
	if err := r.node.Freeze(); err != nil {
		t.Fatal(err)
	}
	f := w.until("the failure", func(o topology.Observation) bool { return o.Failure != nil }).Failure
	if f.Class != topology.FailTimeout {
		t.Errorf("got %s: %s", f.Class, f.Text)
	}
	if err := r.node.Thaw(); err != nil {
		t.Fatal(err)
	}
	w.until("the picture after it", namesN1)
}

// TestSeveralMonitors: the first that answers counts, and a copy is none.
func TestSeveralMonitors(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Nodes: 2, ProbeUser: "probe"})
	if err != nil {
		t.Fatal(err)
	}
	r := &played{t, c.Node("n1")}
	r.exec(fakeMonitor + "; GRANT autoctl_node TO app")
	if err := c.WaitStreaming(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := r.options()
	standby, err := topology.ParseAddress(c.Node("n2").Addr())
	if err != nil {
		t.Fatal(err)
	}
	main := o.Monitors[0]
	o.Monitors = []topology.Address{standby}
	got := start(t, o).next()
	if got.Failure == nil || got.Failure.Class != topology.FailStore || !strings.Contains(got.Failure.Text, "during recovery") {
		t.Errorf("a standby of the monitor: %+v", got.Failure)
	}
	o.Monitors = []topology.Address{standby, main}
	if got := start(t, o).next(); got.Failure != nil || got.Authority.Leader != "n1" {
		t.Errorf("got %+v", got.Failure)
	}
	if _, err := New(Options{Cluster: "main", Now: o.Now}); err == nil || !strings.Contains(err.Error(), "address of its monitor") {
		t.Errorf("without a monitor: %v", err)
	}
}
