package postgres

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

func TestServersThatRefuseAreAskedSlowly(t *testing.T) {
	for _, c := range []struct {
		state  string
		class  topology.FailureClass
		logins int // in a minute, the first one included
		alive  bool
	}{
		{"57P03", topology.FailStarting, 30, false},
		{"53300", topology.FailSlots, 30, false},
		{"28P01", topology.FailAuth, 1, true},
		{"28000", topology.FailAuth, 1, true},
		{"42501", topology.FailAuth, 1, true},
		{"3D000", topology.FailDatabase, 1, true},
		{"XX000", topology.FailProtocol, 12, false},
	} {
		t.Run(c.state, func(t *testing.T) {
			withRig(t, pgtest.State{Probe: primary, LoginError: c.state}, Options{}, func(r *rig) {
				r.SetPace(Burst)
				r.after(0)
				for range 59 {
					r.Nudge()
					r.after(time.Second)
				}
				n := r.server.Counts()
				if n.Logins != c.logins || (n.Alive > 0) != c.alive {
					t.Errorf("%d logins and %d questions for liveness in a minute, want %d logins", n.Logins, n.Alive, c.logins)
				}
				if got := attempts(r.seen, c.class); got != len(r.seen) || got < c.logins {
					t.Errorf("observed %q, want %s alone", words(r.seen), c.class)
				}
				if lines := strings.Count(r.log.String(), "\n"); lines != 1 {
					t.Errorf("%d log lines, want one:\n%s", lines, r.log.String())
				}
				r.server.Set(func(s *pgtest.State) { s.LoginError = "" })
				if w := words(r.after(5 * time.Second)); !strings.Contains(w, "full=writable") {
					t.Errorf("observed %q after the trouble, want an answer", w)
				}
			})
		})
	}
}

func TestAnotherPasswordIsTriedAtOnce(t *testing.T) {
	var password atomic.Pointer[string]
	old, rotated := "old secret", "new secret"
	password.Store(&old)
	o := Options{Password: func() string { return *password.Load() }}
	withRig(t, pgtest.State{Probe: primary, Password: rotated}, o, func(r *rig) {
		r.want(r.after(2*time.Second), "!auth !auth !auth")
		password.Store(&rotated)
		r.want(r.after(time.Second), "login full=writable")
		for _, o := range r.seen {
			if o.Failure != nil && strings.Contains(o.Failure.Text, "secret") {
				t.Errorf("a text holds the password: %s", o.Failure.Text)
			}
		}
	})
}

func TestPasswordThatIsRefusedLaterTroublesTheFreshLoginAlone(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.LoginError = "28P01" })
		got := words(r.after(30 * time.Second))
		if strings.Count(got, "login!auth") != 6 || strings.Count(got, "full=writable") != 30 {
			t.Errorf("observed %q, want six refused logins beside 30 full probes", got)
		}
		if c := r.server.Counts(); c.Logins != 2 || c.Alive != 5 {
			t.Errorf("%d logins and %d questions for liveness, want 2 and 5", c.Logins, c.Alive)
		}
	})
}

// Slots that are all taken are told by whichever login meets them.
func TestSlotsExhausted(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.after(100 * ms)
		r.server.Set(func(s *pgtest.State) { s.LoginError = "53300" })
		got := words(r.after(10 * time.Second))
		if strings.Count(got, "login!slots") != 2 || strings.Count(got, "full=writable") != 10 || strings.Contains(got, " !") {
			t.Errorf("observed %q, want two logins in vain beside ten full probes", got)
		}
		r.server.Kill("57P01")
		r.want(r.after(0), "!shutting_down !slots")
		if n := attempts(r.after(10*time.Second), topology.FailSlots); n != 5 {
			t.Errorf("%d attempts at a new session in ten seconds, want one in two", n)
		}
		r.server.Set(func(s *pgtest.State) { s.LoginError = "" })
		if w := words(r.after(2 * time.Second)); !strings.HasPrefix(w, "login full=writable") {
			t.Errorf("observed %q, want a session as soon as there is a slot", w)
		}
	})
}

// A refused login is tried once a minute, and between two of them the server is
// asked whether it lives.
func TestRefusedLoginIsTriedOnceAMinute(t *testing.T) {
	withRig(t, pgtest.State{Probe: primary, LoginError: "28P01"}, Options{}, func(r *rig) {
		r.after(5*time.Minute - time.Second)
		if n := r.server.Counts(); n.Logins != 5 || n.Alive != 295 {
			t.Errorf("%d logins and %d questions for liveness in five minutes, want 5 and 295", n.Logins, n.Alive)
		}
	})
}
