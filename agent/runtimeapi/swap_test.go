package runtimeapi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/templates/apply"
)

// Two nodes swap their addresses while HAProxy's file cannot be put in place. The
// running HAProxy has n2 where a standby is now: though n2 is the writer, not one
// session may go there, neither by a push nor by an agent check. Once the file is in
// place n2 serves, at its new address.
func TestHAProxySwapWhileTheCheckFails(t *testing.T) {
	for name, o := range map[string]fleetOptions{
		"pushed":              {},
		"pushed, runtime":     {runtime: true},
		"by agent check":      {silent: true, agent: true},
		"by both, runtime":    {agent: true, runtime: true},
		"restarted meanwhile": {agent: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.broken = filepath.Join(t.TempDir(), "broken")
			f := newFleet(t, o)
			writer, standby := uint16(greet(t, "writer")), uint16(greet(t, "standby"))
			f.nodes = map[string]uint16{"n1": writer, "n2": standby}
			f.show()
			f.applied()
			eventually(t, 5*time.Second, f.serves("writer"))

			if err := os.WriteFile(o.broken, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			f.nodes, f.writer = map[string]uint16{"n1": standby, "n2": writer}, "n2"
			f.show()
			f.neverServes("standby", func(int) bool {
				st := f.applier.Status()[0]
				return st.State != apply.StateApplied && st.Error != "" // the check has failed
			})
			if name == "restarted meanwhile" {
				if err := f.haproxy.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			f.neverServes("standby", func(attempts int) bool { return attempts == 300 })

			if err := os.Remove(o.broken); err != nil {
				t.Fatal(err)
			}
			f.show()
			eventually(t, 20*time.Second, f.serves("writer"))
			f.applied()
			f.wantServers()
			for range 100 { // the agent checks ask about the new address too
				if err := f.serves("writer")(); err != nil {
					t.Fatal("after the swap:", err)
				}
			}
		})
	}
}

// serves reports who serves writes, if it is not who shall.
func (f *fleet) serves(want string) func() error {
	return func() error {
		if got := f.servedBy(); got != want {
			return fmt.Errorf("writes reach %q, want %q", got, want)
		}
		return nil
	}
}

// neverServes fails when a session goes to a server until something is done.
func (f *fleet) neverServes(who string, done func(attempts int) bool) {
	f.tb.Helper()
	attempts := 0
	eventually(f.tb, 20*time.Second, func() error {
		if f.servedBy() == who {
			f.tb.Fatalf("a session went to the %s", who)
		}
		if attempts++; !done(attempts) {
			return fmt.Errorf("not done after %d attempts: %+v", attempts, f.applier.Status()[0])
		}
		return nil
	})
}

// Nodes that come, and come back, at runtime are no trouble to anybody: not one push
// fails meanwhile, none lifts the MAINT of a server that is not added again yet, and
// what servers do without is said once for all of them.
func TestHAProxyNodesComeAndComeBack(t *testing.T) {
	f := newFleet(t, fleetOptions{runtime: true, ready: true, agent: true})
	f.applied()
	old, port := uint16(greet(t, "old")), uint16(greet(t, "new"))
	with := func(port uint16, names int) {
		f.nodes = map[string]uint16{"n1": f.nodes["n1"]}
		for i := range names {
			f.nodes[fmt.Sprintf("r%d", i)] = port
		}
		f.show()
		eventually(t, 20*time.Second, func() error {
			if st := f.pusher.Status()[0]; st.Err != nil {
				t.Fatal("a push fails:", st.Err)
			} else if st.Applied["main"] != f.gen {
				return fmt.Errorf("generation %d, status %+v", f.gen, st)
			}
			if got := f.servedBy(); got != "" && got != "n1" {
				t.Fatalf("writes reach %q", got)
			}
			return nil
		})
		f.applied()
		f.wantServers()
	}
	for _, step := range []struct {
		port  uint16
		names int
	}{{old, 20}, {old, 12}, {port, 20}, {port, 13}, {old, 15}} {
		with(step.port, step.names)
	}
	if st := f.applied(); st.Reloads > 0 {
		t.Errorf("reloaded: %+v\n%s", st, f.written.String())
	}
	log := f.log.String()
	if strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Error(log)
	}
	if n := strings.Count(log, "setting="); n != 1 { // servers that come back keep what they have
		t.Errorf("%d lines about settings that servers do without, want 1:\n%s", n, log)
	}
}
