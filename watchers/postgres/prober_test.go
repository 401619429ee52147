package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

const ms = time.Millisecond

func TestNormalPaceAsksEverySecondAndLogsInEveryFive(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.want(r.after(0), "login full=writable")
		r.want(r.after(time.Second), "full=writable")
		r.want(r.after(3*time.Second), "full=writable full=writable full=writable")
		got := r.after(time.Second)
		if n := strings.Count(words(got), "login"); n != 1 || len(got) != 2 {
			t.Errorf("after five seconds: %q, want one login and one full probe", words(got))
		}
		if c := r.server.Counts(); c.Sessions != 2 || c.Terminated != 1 || r.server.Open() != 1 {
			t.Errorf("%d sessions, %d ended, %d open; want 2, 1, 1", c.Sessions, c.Terminated, r.server.Open())
		}
	})
}

func TestRunEndsTheSessionWithTerminate(t *testing.T) {
	var server *pgtest.Server
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		server = r.server
		r.after(100 * ms)
	})
	if c := server.Counts(); c.Sessions != 1 || c.Terminated != 1 {
		t.Errorf("%d sessions and %d Terminate messages, want one each", c.Sessions, c.Terminated)
	}
}

func TestBurstSeesAPromotionWithinOneTick(t *testing.T) {
	withRig(t, pgtest.State{Probe: replica}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.SetPace(Burst)
		r.want(r.after(0), "role=standby")
		r.want(r.after(50*ms), "role=standby")
		r.server.Set(func(s *pgtest.State) { s.Probe = primary })
		r.want(r.after(50*ms), "role=writable full=writable")
		r.want(r.after(100*ms), "role=writable role=writable")
		r.SetPace(Normal)
		r.want(r.after(400*ms), "")
	})
}

func TestBurstKeepsTheFullProbes(t *testing.T) {
	withRig(t, pgtest.State{Probe: replica}, Options{}, func(r *rig) {
		r.after(0)
		r.SetPace(Burst)
		r.after(4 * time.Second)
		if c := r.server.Counts(); c.Full != 5 || c.Role < 70 || c.Role > 80 {
			t.Errorf("%d full and %d role probes in 4 s, want 5 and about 76", c.Full, c.Role)
		}
	})
}

func TestBurstOnAServerThatDoesNotTellItsRole(t *testing.T) {
	withRig(t, pgtest.State{Probe: replica, Mute: true}, Options{}, func(r *rig) {
		r.after(0)
		r.SetPace(Burst)
		got := words(r.after(500 * ms))
		if strings.Contains(got, "role") || strings.Count(got, "full=standby") < 9 {
			t.Errorf("observed %q, want full probes alone, every 50 ms", got)
		}
	})
}

func TestReadOnlySettingIsSeenByTheEmptyQuery(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(0)
		r.server.Set(func(s *pgtest.State) { s.Probe.ReadOnly = topology.Yes })
		r.SetPace(Burst)
		r.want(r.after(50*ms), "role=readonly full=readonly")
	})
}

func TestNudgeAsksNow(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(500 * ms)
		r.Nudge()
		r.want(r.after(0), "full=writable")
		for range 10 {
			r.Nudge()
		}
		r.want(r.after(50*ms), "full=writable") // at most one in 50 ms
	})
}

func TestRefusalIsConfirmedOnce(t *testing.T) {
	withRig(t, pgtest.State{Refuse: true}, Options{}, func(r *rig) {
		got := r.after(100 * ms)
		r.want(got, "!refused !refused")
		if apart := got[1].AskedAt.Mono.Sub(got[0].AskedAt.Mono); apart < 50*ms || apart > 100*ms {
			t.Errorf("the attempts are %v apart, want 50 to 100 ms", apart)
		}
		r.want(r.after(time.Second), "!refused")
		r.server.Set(func(s *pgtest.State) { *s = pgtest.State{Probe: replica} })
		r.want(r.after(time.Second), "login full=standby")
	})
}

func TestLostSession(t *testing.T) {
	for _, c := range []struct{ name, state, want string }{
		{"without a word", "", "!session_lost login full=writable"},
		{"57P01", "57P01", "!shutting_down login full=writable"},
		{"57P02", "57P02", "!shutting_down login full=writable"},
		{"idle_session_timeout", "57P05", "!session_lost login full=writable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
				r.after(500 * ms)
				r.server.Kill(c.state)
				r.want(r.after(0), c.want) // not at the next tick, and a new session at once
			})
		})
	}
}

func TestLostSessionInBurstIsSeenAtTheNextRoleTick(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(0)
		r.SetPace(Burst)
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.Refuse = true })
		r.server.Kill("57P01")
		r.want(r.after(50*ms), "role!shutting_down !refused")
		r.want(r.after(75*ms), "!refused")
	})
}

// A server that restarts in a burst may be the next writer; out of a burst its
// closed port is asked at the usual pace.
func TestRestartInABurstIsSeenSoon(t *testing.T) {
	withRig(t, pgtest.State{Refuse: true}, Options{}, func(r *rig) {
		r.SetPace(Burst)
		r.want(r.after(350*ms), "!refused !refused !refused !refused")
		r.server.Set(func(s *pgtest.State) { *s = pgtest.State{Probe: replica} })
		if got := words(r.after(100 * ms)); !strings.HasPrefix(got, "login full=standby") {
			t.Errorf("observed %q within 100 ms after the restart", got)
		}
	})
}

// A burst does not watch the session between its questions; when it is over, the
// session is watched from that moment on, not from the next question on.
func TestLostSessionRightAfterABurstIsSeenAtOnce(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.SetPace(Burst)
		r.after(2010 * ms)
		r.SetPace(Normal)
		r.after(100 * ms)
		r.server.Kill("57P01")
		r.want(r.after(0), "!shutting_down login full=writable")
	})
}

func TestSessionsEndedInALoopAreNotReplacedInALoop(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.SetPace(Burst)
		for range 100 {
			r.server.Kill("57P01")
			r.after(50 * ms)
		}
		if n := r.server.Counts().Sessions; n > 12 {
			t.Errorf("%d sessions in 5 s, want about two a second at most", n)
		}
	})
}

func TestHungQueryTimesOut(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangQuery = true })
		got := r.after(1299 * ms)
		r.want(got, "")
		r.want(r.after(ms), "!timeout")
		if n := r.door.conns.unanswered(); n != 1 {
			t.Errorf("%d connections wait for a late answer, want the lost session", n)
		}
		r.server.Set(func(s *pgtest.State) { s.HangQuery = false })
		r.want(r.after(0), "login full=writable") // the late answer is a sign of life
		if n := r.door.conns.unanswered(); n != 0 {
			t.Errorf("%d connections wait for a late answer after it came", n)
		}
		if c := r.server.Counts(); c.Terminated != 1 || r.server.Open() != 1 {
			t.Errorf("after the thaw %d sessions were ended and %d are open, want 1 and 1", c.Terminated, r.server.Open())
		}
	})
}

func TestFrozenServerGetsFewConnectionsAndIsSeenToThaw(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = true, true })
		got := r.after(12 * time.Second)
		if n := attempts(got, topology.FailTimeout); n < 10 {
			t.Errorf("%d timeouts reported in 12 s, want about one a second", n)
		}
		if n, most := r.server.Open(), lingerMost+int(lingerFor/crowdedAgain)+1; n > most {
			t.Errorf("%d connections are open at a frozen server, want at most %d", n, most)
		}
		r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = false, false })
		if got := words(r.after(60 * ms)); !strings.HasPrefix(got, "login full=writable") {
			t.Errorf("observed %q, want an answer at once", got)
		}
	})
}

func TestHungPostmasterIsSeenByTheFreshLoginAlone(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangLogin = true })
		got := r.after(7 * time.Second)
		if w := words(got); strings.Count(w, "login!timeout") != 1 || strings.Count(w, "full=writable") != 7 {
			t.Errorf("observed %q, want a login that timed out between seven undisturbed ticks", w)
		}
	})
}

// One slow login is repeated before it counts.
func TestSlowLoginIsRepeatedSoon(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangLogin = true })
		if w := words(r.after(7 * time.Second)); strings.Count(w, "login") != 1 || !strings.Contains(w, "login!timeout") {
			t.Fatalf("observed %q, want one login that timed out", w)
		}
		r.server.Set(func(s *pgtest.State) { s.HangLogin = false })
		if w := words(r.after(time.Second)); strings.Count(w, "login") != 1 || strings.Contains(w, "login!") {
			t.Errorf("observed %q within a second of the failure, want a good login", w)
		}
	})
}

func TestSilentHost(t *testing.T) {
	withRig(t, pgtest.State{Silent: true}, Options{}, func(r *rig) {
		r.want(r.after(799*ms), "")
		r.want(r.after(ms), "!timeout")
		r.want(r.after(time.Second), "!timeout")
	})
}

func TestBackOffPaceIsSlowWithoutASession(t *testing.T) {
	withRig(t, pgtest.State{Silent: true}, Options{}, func(r *rig) {
		r.SetPace(BackOff)
		if n := len(r.after(10 * time.Second)); n > 6 {
			t.Errorf("%d attempts in 10 s, want five or six", n)
		}
	})
}

func TestStatementThatIsRefused(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary, QueryError: "42883"}, Options{}, func(r *rig) {
		got := r.after(20 * time.Second)
		if n := attempts(got, topology.FailProtocol); n != 4 && n != 5 {
			t.Errorf("%d attempts in 20 s, want one in five seconds: %q", n, words(got))
		}
	})
}

func TestPromotionInTheMiddleOfAProbe(t *testing.T) {
	withRig(t, pgtest.State{Probe: replica}, Options{}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.Probe, s.QueryError, s.QueryErrors = primary, "55000", 1 })
		r.want(r.after(500*ms), "full=writable")
	})
}

func TestNewNamesEveryMissingOption(t *testing.T) {
	_, err := New(Options{Node: "n1"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{"Cluster", "User", "Address", "Now"} {
		if !strings.Contains(err.Error(), "option "+name+" ") {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

// An address that swallowed connections is asked again soon, also when nobody
// ever answers the old ones: its host may have been exchanged.
func TestAddressThatSwallowedConnectionsIsNotForgotten(t *testing.T) {
	withRig(t, pgtest.State{HangLogin: true}, Options{}, func(r *rig) {
		r.after(8 * time.Second)
		if n := r.door.conns.unanswered(); n < lingerMost {
			t.Fatalf("%d connections are unanswered, the test needs %d", n, lingerMost)
		}
		next := pgtest.New(pgtest.State{Probe: replica})
		defer next.Close()
		r.moved.Store(next)
		if w := words(r.after(crowdedAgain + time.Second)); !strings.Contains(w, "full=standby") {
			t.Errorf("observed %q, want an answer of the new host", w)
		}
		r.server.Set(func(s *pgtest.State) { s.HangLogin = false })
		r.after(ms) // the late answers are read
	})
}

// A postmaster that hangs for long is asked at a steady pace, also when so many
// connections are unanswered that no further one is made.
func TestHungPostmasterIsAskedSteadily(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangLogin = true })
		if n := strings.Count(words(r.after(time.Minute)), "login!timeout"); n < 10 || n > 35 {
			t.Errorf("%d logins in vain within a minute, want one every few seconds", n)
		}
		r.server.Set(func(s *pgtest.State) { s.HangLogin = false })
		r.after(20 * time.Second) // the late answers are read
	})
}
