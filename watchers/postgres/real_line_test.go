package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// line asks other things over a session of the same kind.
func (w *world) line(t *testing.T) {
	o := LineOptions{Options: w.options(t, w.n1), Opening: []string{"LISTEN state"}, Settings: GoneSettings()}
	l, err := NewLine(o, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ask := func(want, sql string, args ...string) {
		t.Helper()
		rows, f := l.Ask(t.Context(), sql, args...)
		if f != nil || len(rows) != 1 || string(rows[0]) != want {
			t.Fatalf("%s %v: got %q, %+v, want %s", sql, args, rows, f, want)
		}
	}
	lines := written(t, w.n1, func() {
		ask("30000", "SELECT setting FROM pg_settings WHERE name = $1", "tcp_user_timeout")
		hears := func(how string, notify func()) {
			t.Helper()
			stirred := make(chan struct{}, 1)
			stop := l.Idle(func() { stirred <- struct{}{} })
			defer stop()
			notify()
			select {
			case <-stirred:
			case <-time.After(10 * time.Second):
				t.Fatalf("a notification %s stirred nobody", how)
			}
		}
		hears("while idle", func() {
			if err := w.n1.Exec(t.Context(), "SELECT pg_notify('state', '')"); err != nil {
				t.Fatal(err)
			}
		})
		ask("", "SELECT pg_notify('state', '')::text")
		hears("with an answer", func() {})
		ask("1", "SELECT count(*)::text FROM pg_listening_channels() WHERE pg_listening_channels = $1", "state")
	})
	if len(lines) != 0 {
		t.Errorf("the server logged %q, want nothing", lines)
	}
	before, _ := l.Ask(t.Context(), "SELECT pg_backend_pid()::text")
	if err := w.n1.Exec(t.Context(), "SELECT pg_terminate_backend("+string(before[0])+")"); err != nil {
		t.Fatal(err)
	}
	ask("1", "SELECT count(*)::text FROM pg_listening_channels() WHERE pg_listening_channels = $1", "state") // over a new one
	for sql, class := range map[string]topology.FailureClass{
		"SELECT rolname::text FROM pg_authid": topology.FailDenied, "SELECT 1, 2": topology.FailProtocol, "SELECT pg_sleep(60)": topology.FailTimeout,
	} {
		fresh, err := NewLine(o, func() {})
		if err != nil {
			t.Fatal(err)
		}
		_, f := fresh.Ask(t.Context(), sql)
		if f == nil || f.Class != class || f.Node != "" || f.Address != o.Address || !strings.Contains(f.Text, o.Address.String()) {
			t.Errorf("%s: got %+v, want %s", sql, f, class)
		}
		fresh.Close()
	}
	if _, err := NewLine(LineOptions{}, nil); err == nil || !strings.Contains(err.Error(), "Address") {
		t.Errorf("without options: %v", err)
	}
}
