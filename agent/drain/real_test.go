package drain

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestDrain is about a real server; the cases share it.
func TestDrain(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		name string
		run  func(*rig)
	}{
		{"whole", theWhole},
		{"left", theLeft},
		{"nobody", nobodyLeft},
		{"restart", restarted},
		{"killed", killedBetween},
		{"lost answer", answerLost},
		{"end in vain", endsInVain},
		{"keeps", keeps},
		{"stopped", stopped},
		{"stopped elsewhere", stoppedElsewhere},
		{"settled", settles},
		{"later", otherWords},
		{"refused", refused},
		{"asked again in vain", askedInVain},
		{"other server", otherServer},
		{"led away", ledAway},
		{"another run", anotherRun},
		{"late", tooLate},
		{"unwritten", unwritten},
		{"settling", settling},
		{"another agent's", anothers},
		{"unusable", unusable},
		{"promoted", promoted},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(s.rig(t, "n2")) })
	}
}

// theWhole: idle sessions end early, transactions live until the deadline, the
// excluded live on; everybody who was ended is named, in the report and in the log.
func theWhole(r *rig) {
	working, waiting, idle := r.client("n2", "app", "working"), r.client("n2", "app", "waiting"), r.client("n2", "app", "idle")
	sly := r.client("n2", "app", "pgsteer") // the name alone makes nobody pgsteer
	walker := r.client("n2", "walker", "walker&replication=database")
	spared := []*pgx.Conn{r.client("n2", "boss", "boss"), r.client("n2", "exporter", "exporter"), r.client("n2", ender, "pgsteer")}
	r.exec(waiting, "BEGIN")
	r.exec(working, "BEGIN")
	worked := make(chan error, 1)
	go func() { _, err := working.Exec(r.t.Context(), "SELECT pg_sleep(60)"); worked <- err }()
	r.begin(4*time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	rep := r.until("the idle ones to end", func(rep Report) bool { return len(rep.Ended) == 2 })
	if rest := rep.Deadline.Sub(r.now()); rest < 500*time.Millisecond || rep.Phase != Waiting {
		r.t.Errorf("the idle ones ended %s before the deadline in phase %s", rest, rep.Phase)
	}
	if n, oldest := rep.Transactions(); n != 2 || oldest < time.Second {
		r.t.Errorf("%d transactions, the oldest for %s", n, oldest)
	}
	select {
	case err := <-worked:
		r.t.Errorf("the transaction ended before the deadline: %v", err)
	default:
	}
	rep = r.over()
	if late := r.now().Sub(rep.Deadline); late < 0 || late > 2*time.Second || rep.Phase != Done {
		r.t.Errorf("it was over %s after the deadline as %s: %+v", late, rep.Phase, rep)
	}
	want := map[string]string{"working": "deadline", "waiting": "deadline", "idle": "idle", "pgsteer": "idle"}
	if got := endedNames(rep); !maps.Equal(got, want) {
		r.t.Errorf("ended are %v, want %v", got, want)
	}
	for _, c := range rep.Ended {
		if !c.Told || c.User != "app" || !strings.HasPrefix(c.Client.Client, "127.0.0.1:") || c.PID == 0 || c.State == "" {
			r.t.Errorf("not named whole: %+v", c)
		}
	}
	for name, c := range map[string]*pgx.Conn{"waiting": waiting, "idle": idle, "pgsteer": sly} {
		if got := r.state(c); got != "57P01" {
			r.t.Errorf("%s sees %q", name, got)
		}
	}
	if err := <-worked; err == nil || !strings.Contains(err.Error(), "57P01") {
		r.t.Errorf("working sees %v", err)
	}
	for i, c := range spared {
		if got := r.state(c); got != "" {
			r.t.Errorf("spared session %d ended: %s", i, got)
		}
	}
	if _, err := walker.PgConn().Exec(r.t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil {
		r.t.Errorf("replication ended: %v", err)
	}
	ended, left := r.Counts()
	if n := r.log.Count(`audit="session ended" target=main/n2`); n != 4 || ended != 4 || left != 0 {
		r.t.Errorf("%d lines, %d counted, %d left", n, ended, left)
	}
	if l := r.log.String(); strings.Contains(l, "pg_sleep") || !strings.Contains(l, "user=app application=working client=127.0.0.1:") {
		r.t.Errorf("the log is\n%s", l)
	}
}

// theLeft: who may not be ended at the deadline is left, by name, and goes on.
func theLeft(r *rig) {
	busy, idle := r.client("n2", "app", "busy"), r.client("n2", "app", "idle")
	r.exec(busy, "BEGIN")
	r.begin(4*time.Second, maintenance.Sessions{EndIdle: true})
	rep := r.over()
	if rep.Phase != Left || names(rep.Left) != "busy" || rep.Left[0].State != "idle in transaction" || len(rep.Ended) != 1 {
		r.t.Errorf("%+v", rep)
	}
	if a, b := r.state(busy), r.state(idle); a != "" || b != "57P01" {
		r.t.Errorf("busy sees %q, idle %q", a, b)
	}
}

// nobodyLeft: when all have gone by themselves it is over before the deadline, and
// without end_idle nobody who only waits is ended.
func nobodyLeft(r *rig) {
	c := r.client("n2", "app", "idle")
	r.begin(time.Hour, maintenance.Sessions{Terminate: true})
	seen := r.until("a look", func(rep Report) bool { return !rep.LookedAt.IsZero() })
	r.until("another look", func(rep Report) bool { return rep.LookedAt.After(seen.LookedAt) })
	if got := r.state(c); got != "" {
		r.t.Errorf("an idle session ended before the deadline: %s", got)
	}
	_ = c.Close(r.t.Context())
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 0 {
		r.t.Errorf("%+v", rep)
	}
}

// restarted: a restart in the middle of the waiting changes nothing.
func restarted(r *rig) {
	busy := r.client("n2", "app", "busy")
	r.client("n2", "app", "idle")
	r.exec(busy, "BEGIN")
	r.begin(5*time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	r.until("the idle one to end", func(rep Report) bool { return len(rep.Ended) == 1 })
	r.stop()
	r.up()
	if rep := r.report(); len(rep.Ended) != 1 || rep.Phase != Waiting {
		r.t.Errorf("after the restart: %+v", rep)
	}
	rep := r.over()
	if got := endedNames(rep); rep.Phase != Done || !maps.Equal(got, map[string]string{"idle": "idle", "busy": "deadline"}) {
		r.t.Errorf("%+v", rep)
	}
	if got := r.state(busy); got != "57P01" || rep.Ended[1].At.Before(rep.Deadline) {
		r.t.Errorf("busy sees %q, ended at %s", got, rep.Ended[1].At)
	}
}

// killedBetween: whoever was ended by an agent that died before it heard so stands in
// the report of the next one, once.
func killedBetween(r *rig) {
	r.client("n2", "app", "idle")
	r.change(func() { r.lose = true })
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	r.until("the answer to be lost", func(rep Report) bool { return rep.Trouble != "" })
	r.change(func() { r.judged.Address.Port++ }) // so that nothing more is known before the end
	r.stop()
	path := filepath.Join(r.dir, "drains.json")
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"doomed"`) {
		r.t.Fatalf("%v\n%s", err, text)
	}
	r.judge("n2")
	r.up()
	rep := r.over()
	if rep.Phase != Done || len(rep.Ended) != 1 || rep.Ended[0].Told || rep.Ended[0].Application != "idle" {
		r.t.Errorf("%+v", rep)
	}
}

// answerLost: the same without a restart; the look that follows tells.
func answerLost(r *rig) {
	r.client("n2", "app", "idle")
	r.change(func() { r.lose = true })
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	rep := r.over()
	if rep.Phase != Done || len(rep.Ended) != 1 || rep.Trouble != "" || r.log.Count("the link broke") != 1 {
		r.t.Errorf("%+v\n%s", rep, r.log.String())
	}
}

// endsInVain: the time to end the rest begins when somebody was told, and not with a
// statement that failed, or that found another server: who could not be told for longer
// than that time is told when it is possible again.
func endsInVain(r *rig) {
	for want, answer := range map[string]func() (string, error){
		"the link broke":     func() (string, error) { return "", errors.New("the link broke") },
		"became another one": func() (string, error) { return `{"same":false,"told":[]}`, nil },
	} {
		c := r.client("n2", "app", "busy")
		r.exec(c, "BEGIN")
		r.change(func() { r.answer = answer })
		r.begin(time.Second, maintenance.Sessions{Terminate: true})
		r.until(want, func(rep Report) bool { return strings.Contains(rep.Trouble, want) })
		r.ahead.Add(int64(endFor + time.Second))
		r.change(func() { r.answer = nil })
		r.Wake()
		if rep := r.over(); rep.Phase != Done || endedNames(rep)["busy"] != whyDeadline || r.state(c) != "57P01" {
			r.t.Errorf("%s: it sees %q: %+v", want, r.state(c), rep)
		}
	}
}

// keeps: a drain that ends nobody needs no right to. It reports who is left at the
// deadline, by name, or that nobody is, and everybody goes on.
func keeps(r *rig) {
	r.change(func() { r.setup.Login = r.login("weak") })
	busy, idle := r.client("n2", "app", "busy"), r.client("n2", "app", "idle")
	both := func(rep Report) bool { return names(rep.Left) == "busy idle" || names(rep.Left) == "idle busy" }
	r.exec(busy, "BEGIN")
	r.begin(3*time.Second, maintenance.Sessions{})
	rep := r.over()
	if n, _ := rep.Transactions(); rep.Phase != Left || !both(rep) || n != 1 || len(rep.Ended) != 0 || r.now().Before(rep.Deadline) {
		r.t.Errorf("%+v", rep)
	}
	if a, b := r.state(busy), r.state(idle); a != "" || b != "" {
		r.t.Errorf("busy sees %q, idle %q", a, b)
	}
	r.begin(time.Hour, maintenance.Sessions{})
	r.until("a look", both)
	_, _ = busy.Close(r.t.Context()), idle.Close(r.t.Context())
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 0 {
		r.t.Errorf("%+v", rep)
	}
}

// stopped: after the end of the maintenance nobody is ended any more.
func stopped(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(3*time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	r.until("a look", func(rep Report) bool { return names(rep.Left) == "idle" })
	r.end()
	r.exec(c, "COMMIT")
	rep := r.until("the stop", func(rep Report) bool { return rep.Phase == Stopped })
	r.ahead.Add(int64(10 * time.Second)) // beyond the deadline
	r.Wake()
	r.Settle(n2)
	if got := r.state(c); got != "" || len(rep.Ended) != 0 {
		r.t.Errorf("after the stop it sees %q: %+v", got, rep)
	}
	// Between the look and the end: the record is looked at last.
	e := entry{Server: Identity{SystemID: r.judged.SystemID, Standby: true}, Report: rep}
	j, _ := r.o.Judged("main", "n2")
	srv, err := r.enter(r.t.Context(), entry{Server: mustIdentity(r, j)}, j)
	if err != nil {
		r.t.Fatal(err)
	}
	defer srv.Close()
	left, err := srv.look(r.t.Context())
	if err != nil || names(left) != "idle" {
		r.t.Fatalf("%v %+v", err, left)
	}
	if err := r.Runner.end(r.t.Context(), srv, r.drains[n2], &e, endings{left, whyDeadline, rep}); err != nil || r.state(c) != "" {
		r.t.Errorf("the end of the record between look and end: %v, it sees %q", err, r.state(c))
	}
}

// settles: an end of the maintenance waits for what is being done, so that after its
// answer nobody is ended.
func settles(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	r.until("a look", func(rep Report) bool { return len(rep.Left) == 1 })
	at, on := make(chan struct{}), make(chan struct{})
	login := r.setup.Login
	r.change(func() {
		r.setup.Login = func(ctx context.Context, cluster string, n topology.Node) (Session, error) {
			close(at)
			<-on
			return login(ctx, cluster, n)
		}
	})
	r.Wake()
	<-at
	r.change(func() { r.setup.Login = login })
	settled := make(chan struct{})
	go func() { r.end(); close(settled) }()
	select {
	case <-settled:
		r.t.Error("it did not wait")
	case <-time.After(100 * time.Millisecond):
	}
	close(on)
	<-settled
	if rep := r.over(); rep.Phase != Stopped || len(rep.Ended) != 0 || r.state(c) != "" {
		r.t.Errorf("%+v", rep)
	}
}

func mustIdentity(r *rig, j Judged) Identity {
	id, err := j.identity()
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// otherWords: a second request changes what is done, and the report goes on.
func otherWords(r *rig) {
	busy := r.client("n2", "app", "busy")
	r.client("n2", "app", "idle")
	r.exec(busy, "BEGIN")
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	r.until("the idle one to end", func(rep Report) bool { return len(rep.Ended) == 1 })
	r.begin(time.Second, maintenance.Sessions{Terminate: true})
	rep := r.over()
	if got := endedNames(rep); rep.Phase != Done || !maps.Equal(got, map[string]string{"idle": "idle", "busy": "deadline"}) {
		r.t.Errorf("%+v", rep)
	}
}

// refused: what could not be done is refused before anything begins.
func refused(r *rig) {
	want := maintenance.Sessions{Deadline: r.now().Add(time.Hour), Terminate: true}
	for text, c := range map[string]struct {
		t     maintenance.Target
		setup Setup
	}{
		"GRANT pg_signal_backend TO weak":            {n2, Setup{Login: r.login("weak"), Own: r.setup.Own}},
		"GRANT pg_monitor TO blind":                  {n2, Setup{Login: r.login("blind"), Own: r.setup.Own}},
		"GRANT pg_monitor, pg_signal_backend TO app": {n2, Setup{Login: r.login("app"), Own: r.setup.Own}},
		"nobody": {n2, Setup{Login: r.login("nobody"), Own: r.setup.Own}},
		"maintenance.sessions.user names no role":     {n2, Setup{}},
		"name CLUSTER/NODE, and no pool":              {maintenance.Target{Cluster: "main", Node: "n2", Pool: "replica"}, r.setup},
		"at one whole node alone":                     {maintenance.Target{Cluster: "main"}, r.setup},
		"at one whole node alone: name CLUSTER/NODE,": {maintenance.Agent, r.setup},
	} {
		before := r.setup
		r.change(func() { r.setup = c.setup })
		if _, err := r.Prepare(r.t.Context(), c.t, want); err == nil || !strings.Contains(err.Error(), text) {
			r.t.Errorf("%v, want %q", err, text)
		}
		r.change(func() { r.setup = before })
	}
	r.change(func() { r.write = func(string, []byte) error { return errors.New("disk full") } })
	if _, err := r.Prepare(r.t.Context(), n2, want); err == nil || !strings.Contains(err.Error(), "disk full") {
		r.t.Errorf("a disk that takes nothing: %v", err)
	}
	if _, ok := r.Report(n2); ok {
		r.t.Error("something has begun")
	}
}

// askedInVain: what is asked for and then refused, or not stored, does not take the place
// of what the records come to say, over a restart either.
func askedInVain(r *rig) {
	c := r.client("n2", "app", "idle")
	want := maintenance.Sessions{EndIdle: true, Deadline: r.now().Add(time.Hour)}
	first, err := r.Prepare(r.t.Context(), n2, want)
	if err != nil {
		r.t.Fatal(err)
	}
	for range mostNext - 1 {
		if _, err := r.Prepare(r.t.Context(), n2, want); err != nil {
			r.t.Fatal(err)
		}
	}
	r.stop()
	r.up()
	r.record(func(set maintenance.Set) (maintenance.Set, bool) {
		set, _, changed := set.Start(maintenance.Record{Target: n2, Sessions: first}, r.now().Add(-settleFor))
		return set, changed
	})
	if rep := r.over(); rep.ID != first.ID || rep.Phase != Done || len(rep.Ended) != 1 {
		r.t.Errorf("%+v", rep)
	}
	if got := r.state(c); got != "57P01" {
		r.t.Errorf("the client sees %q", got)
	}
}

// unwritten: who cannot be written down is not ended.
func unwritten(r *rig) {
	c := r.client("n2", "app", "idle")
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	r.change(func() { r.write = func(string, []byte) error { return errors.New("disk full") } })
	r.until("the trouble", func(rep Report) bool { return strings.Contains(rep.Trouble, "disk full") })
	if got := r.state(c); got != "" {
		r.t.Errorf("it sees %q", got)
	}
	r.change(func() { r.write = nil })
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 1 {
		r.t.Errorf("%+v", rep)
	}
}

// settling: nobody is ended before balancers had two seconds, nor while this agent
// itself still sends new sessions there, which would only come back.
func settling(r *rig) {
	c := r.client("n2", "app", "idle")
	r.change(func() { r.judged.Open = true })
	begin := r.now()
	r.beginNow(time.Hour, maintenance.Sessions{EndIdle: true})
	r.until("the trouble", func(rep Report) bool { return strings.Contains(rep.Trouble, "still gets new sessions") })
	if d := r.now().Sub(begin); d < settleFor || r.state(c) != "" {
		r.t.Errorf("after %s it sees %q", d, r.state(c))
	}
	r.change(func() { r.judged.Open = false })
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 1 {
		r.t.Errorf("%+v", rep)
	}
}

// anothers: as soon as the record has the drain of another agent, this one ends nobody,
// and says that it is over here. Of one that it never had it says nothing.
func anothers(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	over := func() {
		r.record(func(set maintenance.Set) (maintenance.Set, bool) {
			set, _, changed := set.Start(maintenance.Record{Target: n2, Sessions: maintenance.Sessions{ID: "theirs", By: "there", Deadline: r.now().Add(time.Second), EndIdle: true, Terminate: true}}, r.now().Add(-settleFor))
			return set, changed
		})
		r.Settle(n2)
	}
	over()
	if rep, ok := r.Report(n2); ok {
		r.t.Errorf("of another's drain it says %+v", rep)
	}
	r.begin(2*time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	r.until("a look", func(rep Report) bool { return len(rep.Left) == 1 })
	over()
	r.exec(c, "COMMIT")
	rep := r.over()
	r.ahead.Add(int64(10 * time.Second))
	r.Wake()
	r.Settle(n2)
	if got := r.state(c); rep.Phase != Stopped || len(rep.Ended) != 0 || got != "" {
		r.t.Errorf("%+v, it sees %q", rep, got)
	}
}

// unusable: a file that cannot be read is set aside and told, and nobody is ended.
func unusable(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(time.Hour, maintenance.Sessions{EndIdle: true})
	r.until("a look", func(rep Report) bool { return len(rep.Left) == 1 })
	for _, text := range []string{"{", `{"version": 9}`} {
		r.stop()
		if err := os.WriteFile(filepath.Join(r.dir, "drains.json"), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.up()
		kept, err := os.ReadFile(filepath.Join(r.dir, "drains.json.corrupt"))
		if _, ok := r.Report(n2); ok || err != nil || string(kept) != text || r.log.Count("cannot be read: nobody is ended") == 0 {
			r.t.Errorf("%q: %v, a report: %t", text, err, ok)
		}
	}
}
