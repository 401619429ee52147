package postgres

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

func (w *world) quietTLS(t *testing.T) {
	useTLS(t, w.n1)
	o := w.options(t, w.n1)
	o.TLS = &tls.Config{InsecureSkipVerify: true} // a test of the log, not of trust
	p := start(t, o)
	p.until("login over TLS", func(o topology.Observation) bool { return o.Probe != nil })
	p.stop()
	if lines := written(t, w.n1, func() { w.visit(t, o) }); len(lines) > 0 {
		t.Errorf("the server logged %q", lines)
	}
}

// noTLS: n1 has a certificate that nobody vouches for, n2 has none.
func (w *world) noTLS(t *testing.T) {
	for _, n := range []*lab.Node{w.n1, w.n2} {
		o := w.options(t, n)
		o.TLS = &tls.Config{}
		p := start(t, o)
		p.untilFailure(topology.FailTLS)
		p.untilFailure(topology.FailTLS) // from here on a request for liveness
		p.stop()
	}
}

// preferTLS: n1 offers TLS and gets it, n2 does not and is asked without; the
// logs of both stay empty.
func (w *world) preferTLS(t *testing.T) {
	for n, want := range map[*lab.Node]bool{w.n1: true, w.n2: false} {
		o := w.options(t, n)
		o.TLS, o.PlainToo = &tls.Config{InsecureSkipVerify: true}, true
		var encrypted bool
		lines := written(t, n, func() {
			p := start(t, o)
			defer p.stop()
			p.until("login to "+n.Name(), func(o topology.Observation) bool { return o.Probe != nil })
			encrypted = overTLS(t, n)
		})
		if encrypted != want {
			t.Errorf("session to %s over TLS: %t, want %t", n.Name(), encrypted, want)
		}
		if len(lines) > 0 {
			t.Errorf("%s logged %q", n.Name(), lines)
		}
	}
}

// overTLS asks the server whether the prober's session is encrypted.
func overTLS(t *testing.T, n *lab.Node) bool {
	t.Helper()
	conn, err := n.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var on bool
	if err := conn.QueryRow(t.Context(),
		"SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'pgsteer'").Scan(&on); err != nil {
		t.Fatal(err)
	}
	return on
}

// useTLS gives a running node a certificate.
func useTLS(t *testing.T, n *lab.Node) {
	t.Helper()
	ca, err := lab.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	own, err := ca.Issue(n.Name())
	if err != nil {
		t.Fatal(err)
	}
	ownFile(t, n, "server.crt", own.Cert)
	ownFile(t, n, "server.key", own.Key)
	if err := n.Exec(t.Context(), "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
}

// ownFile writes a file that belongs to the server's account.
func ownFile(t *testing.T, n *lab.Node, name, text string) {
	t.Helper()
	info, err := os.Stat(n.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	path := filepath.Join(n.DataDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil || !ok {
		t.Fatal(err)
	}
}

// wrongPassword runs against a server with ssl = on, where the usual request
// for liveness would be logged.
func (w *world) wrongPassword(t *testing.T) {
	o := w.options(t, w.n1)
	o.Password = func() string { return "certainly-not-it" }
	lines := written(t, w.n1, func() {
		p := start(t, o)
		defer p.stop()
		for range 10 {
			if f := p.untilFailure(topology.FailAuth); strings.Contains(f.Text, "certainly-not-it") {
				t.Errorf("the text holds the password: %s", f.Text)
			}
		}
	})
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "DETAIL:") })
	if len(lines) != 1 || !strings.Contains(lines[0], "password authentication failed") {
		t.Errorf("the server logged %q, want one refused login", lines)
	}
}
