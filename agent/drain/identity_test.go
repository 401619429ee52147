package drain

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// otherServer: as soon as the node is not what it was, nobody is ended, whatever is
// wrong about it; when it is again, the drain goes on.
func otherServer(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	for want, wrong := range map[string]func(*Judged){
		"and was at":                func(j *Judged) { j.Address = topology.Address{Host: "127.0.0.1", Port: uint16(r.node("n1").Port())} },
		"belongs to":                func(j *Judged) { j.SystemID++ },
		"identifier of":             func(j *Judged) { j.SystemID = 0 },
		"is the primary now":        func(j *Judged) { j.InRecovery = topology.No },
		"unknown whether":           func(j *Judged) { j.InRecovery = topology.Unknown },
		"was judged on":             func(j *Judged) { j.Timeline++ },
		"timeline 1, n2 was judged": func(j *Judged) { j.Timeline = 0 },
	} {
		r.judge("n2")
		r.change(func() { wrong(&r.judged) })
		r.Wake()
		r.until(want, func(rep Report) bool { return strings.Contains(rep.Trouble, want) })
	}
	if err := r.Trouble(); err == nil || !strings.Contains(err.Error(), "the drain of main/n2 does not go on") {
		r.t.Errorf("the agent says %v", err)
	}
	r.until("the deadline to be over", func(rep Report) bool { return r.now().After(rep.Deadline) })
	r.Wake()
	r.Settle(n2)
	if got := r.state(c); got != "" {
		r.t.Errorf("at another server it sees %q", got)
	}
	r.statementItself(c)
	r.judge("n2")
	r.Wake()
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 1 {
		r.t.Errorf("%+v", rep)
	}
}

// statementItself: the statement that ends looks at the server once more, and at who
// is still the same and idle. The node is still judged to be another one meanwhile,
// so that the drain itself ends nobody.
func (r *rig) statementItself(busy *pgx.Conn) {
	j := r.really("n2")
	id := mustIdentity(r, j)
	srv, err := r.enter(r.t.Context(), entry{Server: id}, j)
	if err != nil {
		r.t.Fatal(err)
	}
	id.Run = srv.run
	defer srv.Close()
	left, err := srv.look(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	reborn := append([]Client{}, left...)
	reborn[0].StartedUS++
	boss := r.client("n2", "boss", "boss")
	bosses := []Client{{PID: int(boss.PgConn().PID())}}
	if err := boss.QueryRow(r.t.Context(), "SELECT "+started+" FROM pg_stat_activity a WHERE pid = pg_backend_pid()").Scan(&bosses[0].StartedUS); err != nil {
		r.t.Fatal(err)
	}
	for long := false; !long; { // its transaction waits for longer than an idle session would have to
		if err := boss.QueryRow(r.t.Context(), "SELECT clock_timestamp() - state_change > '1.1 s' FROM pg_stat_activity WHERE pid = $1", busy.PgConn().PID()).Scan(&long); err != nil {
			r.t.Fatal(err)
		}
	}
	primary, stranger, replica := id, id, id
	primary.Standby, stranger.SystemID, replica.Run = false, id.SystemID+1, r.run("n3")
	for name, x := range map[string]struct {
		id   Identity
		whom []Client
		idle bool
		same bool
	}{
		"a primary": {primary, left, false, false}, "a stranger": {stranger, left, false, false},
		"another replica":            {replica, left, false, false},
		"another session of the pid": {id, reborn, false, true}, "one in a transaction as idle": {id, left, true, true},
		"a superuser": {id, bosses, false, true},
	} {
		told, err := srv.end(r.t.Context(), x.id, x.whom, x.idle)
		if err != nil || told.Same != x.same || len(told.Told) != 0 {
			r.t.Errorf("%s: %+v, %v", name, told, err)
		}
	}
	if got := r.state(busy); got != "" {
		r.t.Errorf("it sees %q", got)
	}
}

// run is the run of a node's server.
func (r *rig) run(node string) string {
	j := r.really(node)
	s, err := r.enter(r.t.Context(), entry{Server: mustIdentity(r, j)}, j)
	if err != nil {
		r.t.Fatal(err)
	}
	s.Close()
	return s.run
}

// ledAway: when the node's address comes to lead to another replica of the cluster,
// which is like the first one in all that a cluster has in common, nobody is ended
// there; when it leads back the drain goes on.
func ledAway(r *rig) {
	link, err := r.site.lab.Link(r.t.Context(), r.node("n2").Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	at, err := topology.ParseAddress(link.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	r.change(func() { r.judged.Address = at })
	right, wrong := r.client("n2", "app", "right"), r.client("n3", "app", "wrong")
	r.exec(right, "BEGIN")
	r.begin(2*time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	r.until("a look", func(rep Report) bool { return names(rep.Left) == "right" })
	link.Lead(r.node("n3").Addr())
	r.until("the trouble", func(rep Report) bool { return strings.Contains(rep.Trouble, "is another one") })
	r.until("the deadline to be over", func(rep Report) bool { return r.now().After(rep.Deadline) })
	r.Wake()
	r.Settle(n2)
	if a, b := r.state(right), r.state(wrong); a != "" || b != "" {
		r.t.Errorf("the right one sees %q, the wrong one %q", a, b)
	}
	link.Lead(r.node("n2").Addr())
	r.Wake()
	if rep := r.over(); rep.Phase != Done || len(rep.Ended) != 1 || rep.Ended[0].Application != "right" || r.state(wrong) != "" {
		r.t.Errorf("%+v", rep)
	}
}

// anotherRun: after a restart of the server nobody is ended, since nothing tells it
// from another one for sure; neither is by a file that does not say which it was. A
// drain that is asked for anew goes on.
func anotherRun(r *rig) {
	r.client("n2", "app", "before")
	r.begin(time.Hour, maintenance.Sessions{Terminate: true})
	r.until("a look", func(rep Report) bool { return names(rep.Left) == "before" })
	n := r.node("n2")
	if err := n.Stop(r.t.Context(), lab.Fast); err != nil {
		r.t.Fatal(err)
	}
	if err := n.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	after := r.client("n2", "app", "after")
	r.judge("n2")
	r.Wake()
	r.until("the trouble", func(rep Report) bool { return strings.Contains(rep.Trouble, "was restarted since") })
	r.begin(time.Second, maintenance.Sessions{Terminate: true})
	if rep := r.over(); rep.Phase != Done || endedNames(rep)["after"] != whyDeadline || r.state(after) != "57P01" {
		r.t.Errorf("%+v", rep)
	}
	if err := (Identity{}).otherRun(""); err == nil {
		r.t.Error("a run that is unknown is the same")
	}
}

// tooLate: an agent that comes back long after the deadline ends nobody.
func tooLate(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(time.Minute, maintenance.Sessions{Terminate: true})
	r.until("a look", func(rep Report) bool { return len(rep.Left) == 1 })
	r.stop()
	r.ahead.Add(int64(time.Minute + lateMost + time.Second))
	r.up()
	if rep := r.over(); rep.Phase != Failed || !strings.Contains(rep.Trouble, "so long after") || r.state(c) != "" {
		r.t.Errorf("%+v, it sees %q", rep, r.state(c))
	}
}

// promoted: a node that becomes the primary keeps its sessions, though nobody has
// judged it anew yet.
func promoted(r *rig) {
	c := r.client("n2", "app", "idle")
	r.exec(c, "BEGIN")
	r.begin(3*time.Second, maintenance.Sessions{Terminate: true})
	r.until("a look", func(rep Report) bool { return len(rep.Left) == 1 })
	if err := r.site.cluster.Promote(r.t.Context(), "n2"); err != nil {
		r.t.Fatal(err)
	}
	r.until("the deadline to be over", func(rep Report) bool { return r.now().After(rep.Deadline.Add(time.Second)) })
	if rep := r.report(); !strings.Contains(rep.Trouble, "is not a replica") || r.state(c) != "" {
		r.t.Errorf("%+v, it sees %q", rep, r.state(c))
	}
}
