package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// PostgreSQL's own TLS passes through Envoy untouched, before and after a change of
// the writer: clients with sslmode=verify-full are let through to a certificate that
// they trust, and nobody stands between, which the channel binding of SCRAM holds.
func TestEnvoyPassesTLS(t *testing.T) {
	t.Parallel()
	ca, err := lab.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	f := newFront(t, frontOptions{envoy: true, authority: ca})
	tr := f.clients(f.envoyWrite, f.envoyRead)
	f.settled("start", tr, time.Now())
	f.verified("n1")
	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	f.verified("n2")
	f.onlyWriters("held sessions over TLS", tr.held.Stop())
	f.onlyWriters("new sessions over TLS", tr.fresh.Stop())
	f.unbroken("readers over TLS", tr.reads.Stop())

	stranger, err := lab.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	f.replace("stranger.crt", stranger.PEM())
	if out, err := f.psql(publicName, "stranger.crt"); err == nil || !strings.Contains(out, "SSL error") {
		t.Errorf("a client that trusts somebody else: %v\n%s", err, out)
	}
	if out, err := f.psql("other.example.org", rootCert); err == nil || !strings.Contains(out, "does not match host name") {
		t.Errorf("a client that dialled another name: %v\n%s", err, out)
	}
}

// verified: a client of the write port that trusts nobody but the authority is on
// the node, over TLS.
func (f *front) verified(node string) {
	f.t.Helper()
	for _, host := range []string{envoyHost, publicName} {
		out, err := f.psql(host, rootCert)
		if want := fmt.Sprintf("%d|t|TLSv1.3\n", f.node(node).Port()); err != nil || out != want {
			f.t.Errorf("as %s: %v: %q, want %q (%s)", host, err, out, want, node)
		}
	}
}

// psql asks Envoy's write port by PostgreSQL's own client, as somebody who dials a
// name: which server this is, and how the session is encrypted.
func (f *front) psql(host, root string) (string, error) {
	f.t.Helper()
	_, port, _ := strings.Cut(f.envoyWrite, ":")
	cmd := exec.CommandContext(f.t.Context(), "psql", "-XAtc",
		"SELECT inet_server_port(), ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
		fmt.Sprintf("host=%s hostaddr=%s port=%s user=%s password=%s dbname=postgres sslmode=verify-full sslrootcert='%s' channel_binding=require",
			host, envoyHost, port, lab.Superuser, f.cluster.Password(lab.Superuser), f.file(root)))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
