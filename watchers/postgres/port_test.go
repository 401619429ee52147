package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

var (
	connect = Ports{frontPort: topology.PortCheckConnect}
	bouncer = Ports{frontPort: topology.PortCheckPgBouncer}
)

// withPorts is withRig with ports to check, and something that listens there.
func withPorts(t *testing.T, ports Ports, front pgtest.State, test func(*rig)) {
	t.Helper()
	withRig(t, pgtest.State{Probe: primary}, Options{}, func(r *rig) {
		r.front.Set(func(s *pgtest.State) { *s = front })
		r.SetPorts(ports)
		test(r)
	})
}

// ports lets time pass and returns what was observed of ports meanwhile.
func (r *rig) ports(d time.Duration) string {
	r.t.Helper()
	return words(only(topology.ProbePort, r.after(d)))
}

func TestPortIsCheckedEveryInterval(t *testing.T) {
	for _, c := range []struct {
		name  string
		ports Ports
		want  pgtest.Counts
	}{
		{"by a connection", connect, pgtest.Counts{Dials: 5}},
		{"by a query over one session", bouncer, pgtest.Counts{Dials: 1, Logins: 1, Sessions: 1, Ones: 5}},
		{"not at all", Ports{frontPort: topology.PortCheckNone}, pgtest.Counts{}},
		{"none given", nil, pgtest.Counts{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			withPorts(t, c.ports, pgtest.State{}, func(r *rig) {
				want := strings.TrimSpace(strings.Repeat("port ", c.want.Dials+max(0, c.want.Ones-1)))
				if got := r.ports(4 * time.Second); got != want {
					t.Errorf("observed %q, want %q", got, want)
				}
				if d := cmp.Diff(c.want, r.front.Counts()); d != "" {
					t.Errorf("done to what listens (-want +got)\n%s", d)
				}
			})
		})
	}
}

func TestPortObservationsNameTheNodeByItsOwnAddress(t *testing.T) {
	withPorts(t, connect, pgtest.State{}, func(r *rig) {
		good := only(topology.ProbePort, r.after(0))
		want := topology.PortOpen{Node: "n1", Address: addr, Port: frontPort}
		if len(good) != 1 || *good[0].Port != want {
			t.Fatalf("observed %+v, want %+v", good, want)
		}
		r.front.Set(func(s *pgtest.State) { s.Refuse = true })
		bad := only(topology.ProbePort, r.after(time.Second))
		if f := bad[0].Failure; f.Node != "n1" || f.Address != addr || f.Port != frontPort || !strings.Contains(f.Text, "10.0.0.1:6432") {
			t.Errorf("failed as %+v, want the node's own address, port %d and the address in the text", f, frontPort)
		}
	})
}

func TestRefusingPortIsConfirmedOnceAndSeenToComeBack(t *testing.T) {
	for name, ports := range map[string]Ports{"connect": connect, "pgbouncer": bouncer} {
		t.Run(name, func(t *testing.T) {
			withPorts(t, ports, pgtest.State{Refuse: true}, func(r *rig) {
				got := only(topology.ProbePort, r.after(100*ms))
				r.want(got, "port!refused port!refused")
				if apart := got[len(got)-1].AskedAt.Mono.Sub(got[0].AskedAt.Mono); apart < 50*ms || apart > 100*ms {
					t.Errorf("the attempts are %v apart, want 50 to 100 ms", apart)
				}
				if got := r.ports(2 * time.Second); got != "port!refused port!refused" {
					t.Errorf("observed %q, want a refusal a second", got)
				}
				r.front.Set(func(s *pgtest.State) { s.Refuse = false })
				if got := r.ports(time.Second); got != "port" {
					t.Errorf("observed %q, want an answer", got)
				}
				if lines := strings.Count(r.log.String(), `check="port 6432"`); lines != 2 {
					t.Errorf("%d log lines, want one for each change:\n%s", lines, r.log.String())
				}
			})
		})
	}
}

func TestPortAndProbeDoNotDelayEachOther(t *testing.T) {
	for name, ports := range map[string]Ports{"connect": connect, "pgbouncer": bouncer} {
		t.Run(name, func(t *testing.T) {
			withPorts(t, ports, pgtest.State{Silent: true}, func(r *rig) {
				got := words(r.after(4 * time.Second))
				if strings.Count(got, "full=writable") != 5 || !strings.Contains(got, "port!timeout") || strings.Contains(got, "port ") {
					t.Errorf("observed %q, want five answers beside a silent port", got)
				}
				r.front.Set(func(s *pgtest.State) { s.Silent = false })
				r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = true, true })
				r.after(3 * time.Second)
				if got := r.ports(4 * time.Second); got != "port port port port" {
					t.Errorf("observed %q, want an answer a second beside a node that hangs", got)
				}
				r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = false, false })
				r.after(ms) // the late answers are read
			})
		})
	}
}

// Whatever listens may never close its end; its connections do not pile up.
func TestConnectionsOfThePortCheckDoNotPileUp(t *testing.T) {
	withPorts(t, nil, pgtest.State{HalfOpen: true}, func(r *rig) {
		_, d := r.newPortCheck(frontPort, topology.PortCheckConnect)
		for range 3 * lingerMost {
			if f := d.connect(r.t.Context()); f != nil {
				t.Fatalf("%+v, want a good check: it accepts", f)
			}
		}
		if n := d.conns.count(); n != lingerMost {
			t.Errorf("%d connections are left, want %d", n, lingerMost)
		}
		r.front.Set(func(s *pgtest.State) { s.HalfOpen = false })
		d.conns.part()
	})
}

func TestPortsAreExchanged(t *testing.T) {
	withPorts(t, connect, pgtest.State{}, func(r *rig) {
		r.ports(2500 * ms)
		r.SetPorts(Ports{frontPort: topology.PortCheckConnect})
		if got := r.ports(0); got != "" {
			t.Errorf("observed %q, want the check to go on as before", got)
		}
		r.SetPorts(bouncer)
		if got := r.ports(0); got != "port" || r.front.Counts().Sessions != 1 {
			t.Errorf("observed %q and %d sessions, want a query at once", got, r.front.Counts().Sessions)
		}
		r.SetPorts(nil)
		if got := r.ports(3 * time.Second); got != "" {
			t.Errorf("observed %q of a port that is not checked any more", got)
		}
		if c := r.front.Counts(); c.Terminated != 1 || r.front.Open() != 0 {
			t.Errorf("%d sessions were ended and %d connections are open, want 1 and 0", c.Terminated, r.front.Open())
		}
	})
}

func TestQueryWithoutAnAnswerIsWaitedOn(t *testing.T) {
	withPorts(t, bouncer, pgtest.State{}, func(r *rig) {
		r.ports(500 * ms)
		r.front.Set(func(s *pgtest.State) { s.HangQuery = true })
		got := r.ports(10 * time.Second)
		if n := strings.Count(got, "port!timeout"); n < 9 || n > 11 || strings.Contains(got, "port ") {
			t.Errorf("observed %q, want a timeout a second", got)
		}
		if c := r.front.Counts(); c.Dials != 1 || r.front.Open() != 1 {
			t.Errorf("%d connections were made and %d are open, want one: a login is a line in PgBouncer's log", c.Dials, r.front.Open())
		}
		r.front.Set(func(s *pgtest.State) { s.HangQuery = false })
		if got := r.ports(time.Second); !strings.HasPrefix(got, "port ") && got != "port" {
			t.Errorf("observed %q, want an answer", got)
		}
	})
}

func TestSessionThatIsNeverAnsweredIsGivenUp(t *testing.T) {
	withPorts(t, bouncer, pgtest.State{}, func(r *rig) {
		r.ports(500 * ms)
		r.front.Set(func(s *pgtest.State) { s.HangQuery = true })
		r.ports(portPatience + 5*time.Second)
		if c := r.front.Counts(); c.Sessions != 2 {
			t.Errorf("%d sessions were made, want a second one after %v", c.Sessions, portPatience)
		}
		r.front.Set(func(s *pgtest.State) { s.HangQuery = false })
		r.after(ms)
	})
}

// Between the end of one session and the login of the next, a late answer of the
// old one is a sign of life.
func TestLateAnswerOfAPortHastensTheNextLogin(t *testing.T) {
	withPorts(t, bouncer, pgtest.State{}, func(r *rig) {
		r.ports(500 * ms)
		r.front.Set(func(s *pgtest.State) { s.HangQuery = true })
		r.ports(portPatience + time.Second + 400*ms) // given up a moment ago, the next login is two seconds away
		r.front.Set(func(s *pgtest.State) { s.HangQuery = false })
		if got := r.ports(0); got != "port" || r.front.Counts().Sessions != 2 {
			t.Errorf("observed %q, %d sessions; want an answer over the second one", got, r.front.Counts().Sessions)
		}
	})
}

func TestLostSessionOfAPort(t *testing.T) {
	withPorts(t, bouncer, pgtest.State{}, func(r *rig) {
		r.ports(500 * ms)
		r.front.Kill("")
		if got := r.ports(0); got != "port" {
			t.Errorf("observed %q, want an answer over a new session at once", got)
		}
		for range 20 {
			r.front.Kill("08P01")
			r.after(50 * ms)
		}
		if n := r.front.Counts().Sessions; n > 5 {
			t.Errorf("%d sessions within a second of being ended in a loop, want about two a second", n)
		}
		r.ports(2 * time.Second)
		r.front.Set(func(s *pgtest.State) { s.Refuse = true })
		r.front.Kill("")
		if got := r.ports(80 * ms); got != "port!refused port!refused" {
			t.Errorf("observed %q, want a death to be seen and confirmed at once", got)
		}
	})
}

func TestPgBouncerThatRefusesIsAskedSlowly(t *testing.T) {
	for _, c := range []struct {
		state, message string
		class          topology.FailureClass
		logins         int // in a minute
		alive          bool
	}{
		{"28P01", "", topology.FailAuth, 1, true},
		{"3D000", "", topology.FailDatabase, 1, true},
		{"08P01", "SASL authentication failed", topology.FailAuth, 1, true},
		{"08P01", "server login has been failing, try again later (server_login_retry)", topology.FailTimeout, 30, false},
		{"53300", "", topology.FailSlots, 30, false},
	} {
		t.Run(c.state+" "+c.message, func(t *testing.T) {
			withPorts(t, bouncer, pgtest.State{LoginError: c.state, Message: c.message}, func(r *rig) {
				got := only(topology.ProbePort, r.after(59900*ms))
				if n := attempts(got, c.class); n != len(got) || n < 30 {
					t.Errorf("observed %q, want %s alone", words(got), c.class)
				}
				if n := r.front.Counts(); n.Logins != c.logins || (n.Alive > 0) != c.alive {
					t.Errorf("%d logins and %d questions for liveness in a minute, want %d logins", n.Logins, n.Alive, c.logins)
				}
				if n := r.server.Counts().Sessions; n < 10 {
					t.Errorf("%d sessions at the node itself, want its logins undisturbed", n)
				}
			})
		})
	}
}

func TestClassesOfPgBouncer(t *testing.T) {
	for _, c := range []struct {
		code, text string
		want       topology.FailureClass
	}{
		{"08P01", "SASL authentication failed", topology.FailAuth},
		{"08P01", "password authentication failed", topology.FailAuth},
		{"08P01", "no such user: pgsteer", topology.FailAuth},
		{"08P01", "login rejected", topology.FailAuth},
		{"08P01", "unsupported startup parameter: search_path", topology.FailAuth},
		{"08P01", `database "app" does not exist`, topology.FailDatabase},
		{"08P01", "no such database: app", topology.FailDatabase},
		{"08P01", "no more connections allowed (max_client_conn)", topology.FailSlots},
		{"08P01", "pgbouncer cannot connect to server", topology.FailTimeout},
		{"08P01", "server login has been failing, try again later (server_login_retry)", topology.FailTimeout},
		{"08P01", "query_wait_timeout", topology.FailTimeout},
		{"53300", "too many connections for role", topology.FailSlots},
		{"57P01", "terminating connection due to administrator command", topology.FailShutdown},
	} {
		if got := bouncerClass(fmt.Errorf("login: %w", &pgconn.PgError{Code: c.code, Message: c.text})); got != c.want {
			t.Errorf("%s %s: class %s, want %s", c.code, c.text, got, c.want)
		}
	}
	if got := bouncerClass(errors.New("nonsense")); got != topology.FailProtocol {
		t.Errorf("nonsense is of class %s, want %s", got, topology.FailProtocol)
	}
}
