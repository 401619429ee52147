package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestLeaderAbsent: no new sessions at once, the old ones end after leader_gap,
// which is loop_wait + retry_timeout by default (FR-05, FR-15).
func TestLeaderAbsent(t *testing.T) {
	w := settled(t, patroni)
	w.authority.Leader = ""
	w.askAuthority()
	w.want("primary", "a=drain/no_leader b=down")
	w.run(19 * sec)
	w.want("primary", "a=drain/no_leader")
	w.run(2 * sec)
	w.want("primary", "a=down/no_leader")
	w.want("replica", "b=up c=up")
	w.authority.Leader = "a"
	w.run(2 * sec)
	w.want("primary", "a=up/writer")

	w.p.LeaderGap = 5 * sec
	w.authority.Leader = ""
	w.askAuthority()
	w.run(4900 * ms)
	w.want("primary", "a=drain/no_leader")
	w.run(200 * ms)
	w.want("primary", "a=down/no_leader")
}

// TestLeaderBlink: a holder that takes the key back in time loses no session.
func TestLeaderBlink(t *testing.T) {
	w := settled(t, patroni)
	w.authority.Leader = ""
	w.run(10 * sec)
	w.want("primary", "a=drain/no_leader")
	w.authority.Leader = "a"
	w.run(sec)
	w.want("primary", "a=up/writer")
	w.authority.Leader = "" // the gap is counted anew
	w.run(15 * sec)
	w.want("primary", "a=drain/no_leader")
	w.moveLeader("b", 6)
	w.askAuthority()
	w.want("primary", "a=down")
}

func TestUnknownLeaderGap(t *testing.T) {
	w := settled(t, patroni)
	w.authority.LoopWait, w.authority.RetryTimeout = 0, 0
	w.authority.Leader = ""
	w.askAuthority()
	w.run(defaultLeaderGap - 100*ms)
	w.want("primary", "a=drain/no_leader")
	w.run(200 * ms)
	w.want("primary", "a=down/no_leader")
}

// TestPauseAndFailsafe: Patroni's primary goes on without a key.
func TestPauseAndFailsafe(t *testing.T) {
	for name, set := range map[string]func(*topology.Authority){
		"pause":    func(a *topology.Authority) { a.Pause = topology.Yes },
		"failsafe": func(a *topology.Authority) { a.Failsafe = topology.Yes },
	} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, patroni)
			set(&w.authority)
			w.authority.Leader = ""
			w.run(5 * time.Minute)
			w.want("primary", "a=up/writer")
			w.become("b", primary(6)) // a rival that cannot be told apart
			w.run(sec)
			w.want("primary", "a=down b=down")
			w.authority.Leader = "b"
			w.run(sec)
			w.want("primary", "a=down/fenced b=up/writer")
		})
	}
}

// TestAuthorityLostHold: the writer is held while SQL proves it; nobody enters
// (FR-26).
func TestAuthorityLostHold(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.run(10 * time.Minute)
	w.want("primary", "a=up/writer")
	p, _ := w.snap.Pool("primary")
	v, _ := p.Verdict("a")
	if len(v.Reasons) != 2 || v.Reasons[1].Code != topology.CodeAuthorityLost {
		t.Fatalf("reasons %v, want authority_lost as the second", v.Reasons)
	}
	w.want("replica", "b=up c=up")

	w.become("a", standby(5)) // its own evidence takes it out
	w.become("b", primary(6))
	w.run(5 * sec)
	w.want("primary", "a=down b=down/fenced")

	w.unheard = ""
	w.moveLeader("b", 6)
	w.run(sec)
	w.want("primary", "b=up/writer")
}

// TestAuthorityLostRival: held only while nobody else is writable on an equal
// or higher timeline.
func TestAuthorityLostRival(t *testing.T) {
	tests := []struct {
		timeline topology.Timeline
		want     string
	}{
		{4, "a=up/writer b=down/fenced"},
		{5, "a=down b=down"},
		{6, "a=down b=down"},
	}
	for _, tt := range tests {
		w := settled(t, patroni)
		w.unheard = topology.FailStore
		w.run(sec)
		w.become("b", primary(tt.timeline))
		w.run(sec)
		w.want("primary", tt.want)
	}
}

// TestAuthorityLostUnproven: while the authority is away a writer whose role
// nothing proves takes no new session, and keeps the old ones.
func TestAuthorityLostUnproven(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.run(sec)
	w.fails("a", topology.FailTimeout)
	w.run(10 * time.Minute)
	w.want("primary", "a=drain/silent")
	w.answers("a")
	w.run(sec)
	w.want("primary", "a=up/writer")
}

// TestAuthorityTooOld: an answer that stopped coming is no current word.
func TestAuthorityTooOld(t *testing.T) {
	w := settled(t, patroni)
	w.askAuthority()
	at := w.now.Mono
	for range 30 {
		w.idle(sec)
		for _, n := range []string{"a", "b", "c"} {
			w.ask(n)
		}
		w.decide()
		want := topology.AuthorityStateCurrent
		if w.now.Mono.Sub(at) >= w.p.AuthorityMaxAge {
			want = topology.AuthorityStateLost
		}
		if w.snap.Authority.State != want {
			t.Fatalf("after %s the authority is %s, want %s", w.now.Mono.Sub(at), w.snap.Authority.State, want)
		}
	}
	w.wantWriter("a")
}

// TestSQLOnly: once the authority's word is too old, and not at its first
// failure, SQL evidence alone decides.
func TestSQLOnly(t *testing.T) {
	w := settled(t, patroni)
	w.p.AuthorityLost = topology.LostSQLOnly
	w.unheard = topology.FailStore
	w.become("a", standby(5))
	w.become("b", primary(6))
	w.run(20 * sec)
	w.want("primary", "a=down b=down/fenced")
	w.run(10 * sec)
	w.want("primary", "a=down b=up/writer")
	w.run(time.Minute)
	w.want("primary", "b=up/writer")

	w.unheard = ""
	w.moveLeader("a", 6)
	w.become("a", primary(7))
	w.run(2 * sec) // it is back and names another
	w.want("primary", "a=up/writer b=down/fenced")
}

// TestSQLOnlyKeepsTheWriter through the loss and the return of the authority.
func TestSQLOnlyKeepsTheWriter(t *testing.T) {
	w := settled(t, patroni)
	w.p.AuthorityLost = topology.LostSQLOnly
	w.onDecide = func(s *topology.Snapshot) {
		if s.Writer != "a" {
			t.Fatalf("writer is %q, want a\n%s", s.Writer, show(s, w.now))
		}
	}
	w.unheard = topology.FailTimeout
	w.run(time.Minute)
	w.unheard = ""
	w.run(time.Minute)
}

// TestIndexBackwards: the watcher says what it reads, and the newest word rules (FR-25).
func TestIndexBackwards(t *testing.T) {
	w := settled(t, patroni)
	w.moveLeader("b", 6)
	w.askAuthority()
	w.want("primary", "a=down")
	w.become("b", primary(6))
	w.run(sec)
	w.want("primary", "a=down/fenced b=up/writer")
}

// TestStandbyCluster has no writer; when it is promoted it gets one (FR-02).
func TestStandbyCluster(t *testing.T) {
	w := newWorld(t, patroni)
	w.become("a", standby(5))
	w.authority.StandbyCluster = true
	w.run(5 * sec)
	w.want("primary", "a=down/standby_cluster b=down/standby_cluster")
	w.want("replica", "a=up b=up c=up")
	w.authority.StandbyCluster = false
	w.become("a", primary(6))
	w.run(sec)
	w.want("primary", "a=up/writer")
}

// TestHoldMax: who wants no writer without an authority says for how long.
func TestHoldMax(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.run(time.Hour)
	w.want("primary", "a=up/writer")
	w.unheard = ""
	w.run(sec)
	w.p.HoldMax = time.Minute
	w.unheard = topology.FailStore
	w.run(59 * sec)
	w.want("primary", "a=up/writer")
	w.run(2 * sec)
	w.want("primary", "a=down/fenced b=down")
	w.unheard = ""
	w.run(3 * sec)
	w.want("primary", "a=up/writer")
}
