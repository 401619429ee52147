package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

// withWrites is withRig with a write probe.
func withWrites(t *testing.T, s pgtest.State, test func(*rig)) {
	t.Helper()
	withRig(t, s, Options{WriteProbe: "pgsteer.heartbeat", Interval: 200 * ms, LoginEvery: time.Hour}, test)
}

// writes lets time pass and returns what was observed of writes meanwhile.
func (r *rig) wrote(d time.Duration) string {
	r.t.Helper()
	return words(only(topology.ProbeWrite, r.after(d)))
}

func TestWriterIsWrittenToOnceASecond(t *testing.T) {
	withWrites(t, pgtest.State{Probe: primary}, func(r *rig) {
		if got := r.wrote(0); got != "write" {
			t.Errorf("observed %q, want a write as soon as the node is known to be writable", got)
		}
		if got := r.wrote(4 * time.Second); got != "write write write write" {
			t.Errorf("observed %q, want a write a second", got)
		}
		if c := r.server.Counts(); c.Sessions != 2 || c.Writes != 5 || r.server.Open() != 2 {
			t.Errorf("%d sessions, %d writes, %d open; want 2, 5, 2", c.Sessions, c.Writes, r.server.Open())
		}
	})
}

func TestOnlyAWritableNodeIsWrittenTo(t *testing.T) {
	readOnly := primary
	readOnly.ReadOnly = topology.Yes
	for name, other := range map[string]topology.Probe{"a standby": replica, "a primary that is read-only": readOnly} {
		t.Run(name, func(t *testing.T) {
			withWrites(t, pgtest.State{Probe: other}, func(r *rig) {
				if got := r.wrote(5 * time.Second); got != "" {
					t.Errorf("observed %q of %s", got, name)
				}
				r.server.Set(func(s *pgtest.State) { s.Probe = primary })
				if got := r.wrote(1100 * ms); got != "write" && got != "write write" {
					t.Errorf("observed %q once it is writable", got)
				}
				r.server.Set(func(s *pgtest.State) { s.Probe = other })
				r.after(200 * ms)
				if got := r.wrote(5 * time.Second); got != "" {
					t.Errorf("observed %q once it is %s again", got, name)
				}
				if c := r.server.Counts(); c.Terminated != 1 || r.server.Open() != 1 {
					t.Errorf("%d sessions were ended and %d are open, want 1 and 1", c.Terminated, r.server.Open())
				}
			})
		})
	}
}

// A hung write is waited on in its one session, and delays no probe.
func TestWriteThatHangs(t *testing.T) {
	withWrites(t, pgtest.State{Probe: primary}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangWrite = true })
		got := r.after(20 * time.Second)
		if w := words(only(topology.ProbeWrite, got)); w != strings.TrimSpace(strings.Repeat("write!timeout ", 7)) {
			t.Errorf("observed %q, want a timeout each %v", w, writeAnswer)
		}
		if n := len(only(topology.ProbeFull, got)); n != 100 {
			t.Errorf("%d full probes in 20 s, want 100", n)
		}
		if n := r.server.Counts().Sessions; n != 2 {
			t.Errorf("%d sessions were made, want two", n)
		}
		r.server.Set(func(s *pgtest.State) { s.HangWrite = false })
		if got := r.wrote(0); got != "write" {
			t.Errorf("observed %q, want a new write at once", got)
		}
		if n := r.server.Counts().Writes; n != 3 {
			t.Errorf("%d writes, want the late one to be repeated", n)
		}
	})
}

func TestWriteThatHangsIsGivenUpWithTheRole(t *testing.T) {
	withWrites(t, pgtest.State{Probe: primary}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangWrite = true })
		r.after(5 * time.Second)
		r.server.Set(func(s *pgtest.State) { s.Probe = replica })
		r.after(200 * ms)
		if got := r.wrote(5 * time.Second); got != "" {
			t.Errorf("observed %q of a standby", got)
		}
		r.server.Set(func(s *pgtest.State) { s.HangWrite = false })
		r.after(ms)
		if n := r.server.Open(); n != 1 {
			t.Errorf("%d connections are open, want the probe's", n)
		}
	})
}

func TestNodeThatIsSilentIsNotWrittenTo(t *testing.T) {
	withWrites(t, pgtest.State{Probe: primary}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = true, true })
		r.after(900 * ms) // the role is unknown from here on
		if got := r.wrote(10 * time.Second); got != "" {
			t.Errorf("observed %q of a silent node", got)
		}
		r.server.Set(func(s *pgtest.State) { s.HangQuery, s.HangLogin = false, false })
		if got := r.wrote(time.Second); !strings.HasPrefix(got, "write") {
			t.Errorf("observed %q, want a write with the first answer", got)
		}
	})
}

func TestWriteThatIsRefused(t *testing.T) {
	for _, c := range []struct {
		state string
		class topology.FailureClass
		tries int // in a minute
		text  string
	}{
		{"57014", topology.FailTimeout, 30, ""},
		{"55P03", topology.FailTimeout, 30, ""},
		{"53100", topology.FailTimeout, 30, ""},
		{"58030", topology.FailTimeout, 30, ""},
		{"25006", topology.FailProtocol, 60, ""},
		{"42P01", topology.FailProtocol, 1, "agent text PRIMARY KEY"},
		{"42501", topology.FailProtocol, 1, "role probe the rights USAGE on its schema"},
		{"3F000", topology.FailProtocol, 1, "pgsteer.heartbeat"},
	} {
		t.Run(c.state, func(t *testing.T) {
			withWrites(t, pgtest.State{Probe: primary, WriteError: c.state}, func(r *rig) {
				got := only(topology.ProbeWrite, r.after(59500*ms))
				if n := attempts(got, c.class); n != c.tries || len(got) != n {
					t.Errorf("observed %d attempts, %d of them %s, want %d", len(got), n, c.class, c.tries)
				}
				if len(got) > 0 && !strings.Contains(got[0].Failure.Text, c.text) {
					t.Errorf("the text is %q, want %q in it", got[0].Failure.Text, c.text)
				}
				if n := r.server.Counts().Sessions; n != 2 {
					t.Errorf("%d sessions were made, want two: a refused statement ends none", n)
				}
				r.server.Set(func(s *pgtest.State) { s.WriteError = "" })
				if got := r.wrote(2 * time.Second); !strings.HasPrefix(got, "write") || strings.Contains(got, "!") {
					t.Errorf("observed %q after the trouble", got)
				}
			})
		})
	}
}

// A write that meets a read-only server has seen the change first.
func TestRefusalToWriteHastensTheProbe(t *testing.T) {
	o := Options{WriteProbe: "heartbeat", Interval: 1500 * ms, LoginEvery: time.Hour}
	withRig(t, pgtest.State{Probe: primary}, o, func(r *rig) {
		r.after(0)
		r.server.Set(func(s *pgtest.State) { s.HangWrite = true })
		r.after(2 * time.Second) // the second write hangs since 1.5 s, the next probe is due at 3 s
		r.server.Set(func(s *pgtest.State) { s.HangWrite, s.WriteError, s.Probe.ReadOnly = false, "25006", topology.Yes })
		if got := words(r.after(0)); !strings.Contains(got, "full=readonly") {
			t.Errorf("observed %q, want the probe to be asked at once", got)
		}
	})
}

func TestWriteWithoutASlot(t *testing.T) {
	withWrites(t, pgtest.State{Probe: primary}, func(r *rig) {
		r.after(500 * ms)
		r.server.Set(func(s *pgtest.State) { s.LoginError = "53300"; s.HangWrite = true })
		r.after(5 * time.Second)
		r.server.Set(func(s *pgtest.State) { s.Probe = replica })
		r.after(time.Second)
		r.server.Set(func(s *pgtest.State) { s.Probe, s.HangWrite = primary, false })
		got := r.wrote(10 * time.Second)
		if n := strings.Count(got, "write!slots"); n < 4 || n > 6 || strings.Count(got, "write") != n {
			t.Errorf("observed %q, want an attempt in two seconds", got)
		}
	})
}

func TestNamesOfTables(t *testing.T) {
	for table, want := range map[string]string{
		"pgsteer.heartbeat": `"pgsteer"."heartbeat"`,
		"heartbeat":         `"public"."heartbeat"`,
		`a"b.c d`:           `"a""b"."c d"`,
	} {
		if got, err := quoteTable(table); got != want || err != nil {
			t.Errorf("%q became %q, %v; want %q", table, got, err, want)
		}
	}
	for _, table := range []string{".", "a.", ".a", "a.b.c", "a\x00"} {
		_, err := New(Options{
			Cluster: "main", Node: "n1", User: "probe", Address: addr, Now: topology.NewTicker(time.Now), WriteProbe: table,
		})
		if err == nil || !strings.Contains(err.Error(), "WriteProbe") {
			t.Errorf("%q: error %v, want one that names the option", table, err)
		}
	}
}
