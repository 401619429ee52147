package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// operator is a client of the status listener over TLS, with a connection for each
// call.
type operator struct {
	r      *rig
	name   string
	client *http.Client
}

// operator makes a client that trusts the server and shows a certificate; nil: none.
func (r *rig) operator(name string, server *authority, own *tls.Certificate) operator {
	c := server.client(nil)
	if own != nil {
		// Shown whatever the server says whom it trusts.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	return operator{r, name, &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}, Timeout: patience}}
}

// call asks as often as one may; code 0 means that there was no connection.
func (o operator) call(method, path, token string) (code int, body string) {
	o.r.t.Helper()
	o.r.until("the rate to allow more", func() bool {
		code, body = o.once(method, path, token)
		return code != http.StatusTooManyRequests
	})
	return code, body
}

func (o operator) once(method, path, token string) (code int, body string) {
	o.r.t.Helper()
	req, err := http.NewRequestWithContext(o.r.t.Context(), method, "https://"+o.r.addr(partStatusTLS)+path, nil)
	if err != nil {
		o.r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := o.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		o.r.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(b))
}

// person makes a client's certificate.
func (a *authority) person(name string, more func(*x509.Certificate)) *tls.Certificate {
	a.t.Helper()
	cert, key, _, _ := a.issue(name, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if more != nil {
			more(c)
		}
	})
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &pair
}

// Who shows a certificate has the role of the names in it; who shows none has a token
// or no right; one that does not hold gets no connection. A token counts beside it.
// The listener without TLS knows no certificates, and the audit names their owners.
func TestRolesByCertificate(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	server, people, strangers := newAuthority(t, "server"), newAuthority(t, "people"), newAuthority(t, "strangers")
	server.certificate(r.dir)
	trust := func(all ...*authority) {
		var b bytes.Buffer
		for _, a := range all {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
		}
		r.file("people.pem", b.String())
	}
	trust(people)
	listeners := strings.TrimSuffix(listen(), "}\n") + ", status_tls: {address: \"127.0.0.1:0\", cert_file: cert.pem, key_file: key.pem, client_ca_file: people.pem}}\n"
	r.write(base, listeners, r.guarded(", admin_names: [ann, \"spiffe://example.org/dba\"], viewer_names: [bob, view.example.org, \"eve@example.org\"]"), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	spiffe, err := url.Parse("spiffe://example.org/dba")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/admin/maintenance"
	for _, tt := range []struct {
		name         string
		cert         *tls.Certificate
		token        string
		look, change int
	}{
		{"the name of an admin", people.person("ann", nil), "", 200, 200},
		{"an admin's URI", people.person("x", func(c *x509.Certificate) { c.URIs = []*url.URL{spiffe} }), "", 200, 200},
		{"the name of a viewer", people.person("bob", nil), "", 200, 403},
		{"a viewer's host", people.person("x", func(c *x509.Certificate) { c.DNSNames = []string{"view.example.org"} }), "", 200, 403},
		{"a viewer's address", people.person("x", func(c *x509.Certificate) { c.EmailAddresses = []string{"eve@example.org"} }), "", 200, 403},
		{"another name", people.person("mallory", nil), "", 401, 401},
		{"a part of a name", people.person("an", nil), "", 401, 401},
		{"no name", people.person("", nil), "", 401, 401},
		{"no certificate", nil, "", 401, 401},
		{"no certificate, an admin's token", nil, adminToken, 200, 200},
		{"a viewer's certificate, an admin's token", people.person("bob", nil), adminToken, 200, 200},
		{"an admin's certificate, a viewer's token", people.person("ann", nil), viewerToken, 200, 200},
		{"an admin's certificate, a wrong token", people.person("ann", nil), "wrong-0123456789abcdef", 200, 200},
		{"signed by others", strangers.person("ann", nil), "", 0, 0},
		{"expired", people.person("ann", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "", 0, 0},
		{"not valid yet", people.person("ann", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "", 0, 0},
		{"for servers", people.person("ann", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "", 0, 0},
	} {
		o := r.operator(tt.name, server, tt.cert)
		look, text := o.call("GET", path, tt.token)
		change, text2 := o.call("DELETE", path, tt.token)
		if look != tt.look || change != tt.change {
			t.Errorf("%s: looks %d %s, changes %d %s; want %d and %d", tt.name, look, text, change, text2, tt.look, tt.change)
		}
	}
	bob := r.operator("bob", server, people.person("bob", nil))
	if _, text := bob.call("POST", path, ""); !strings.Contains(text, "this certificate may look") {
		t.Errorf("a viewer is told %s", text)
	}
	ann := r.operator("ann", server, people.person("ann", nil))
	if code, text := ann.call("POST", path, ""); code != 200 {
		t.Errorf("%d %s", code, text)
	}
	for path, want := range map[string]string{"/admin/switchover/main": "", "/admin/pgbouncer/edge/pause": "there is no PgBouncer edge"} {
		if code, text := ann.call("POST", path, ""); code < 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, want := range []string{
		`audit=start target="this agent" certificate=ann from=127.0.0.1`, `audit="refused: no right" target="this agent" certificate=bob from=127.0.0.1`,
		`target=main cluster=main to="" force=false certificate=ann from=127.0.0.1 audit=refused why=`,
		`target=edge/pause pgbouncer=edge databases=[] for="" certificate=ann from=127.0.0.1 audit="pause failed" err=`,
	} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
	if code, _ := r.call("GET", path, "", ""); code != 401 {
		t.Errorf("without TLS and token: %d", code)
	}
	if code, body := ann.call("GET", "/livez", ""); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}

	// The files are followed, without a restart.
	second := newAuthority(t, "second")
	second.certificate(r.dir)
	trust(strangers)
	late := r.operator("late", second, strangers.person("ann", nil))
	r.until("the new files to count", func() bool { code, _ := late.call("DELETE", path, ""); return code == 200 })
	if code, _ := r.operator("early", second, people.person("ann", nil)).call("GET", path, ""); code != 0 {
		t.Errorf("a certificate of before the change is answered %d", code)
	}
}

// Other files of a listener's TLS are taken over by a reload at the same address, where
// the running listener would be in the way; a file that cannot be used changes nothing.
func TestOtherFilesOfTLSAtTheSameAddress(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	server, first, second := newAuthority(t, "server"), newAuthority(t, "first"), newAuthority(t, "second")
	server.certificate(r.dir)
	r.file("first.pem", first.pem())
	r.file("second.pem", second.pem())
	r.file("none.pem", "no certificate")
	write := func(ca string) {
		secure := "{address: \"127.0.0.1:0\", cert_file: cert.pem, key_file: key.pem, client_ca_file: " + ca + "}"
		r.write(base, "local: main/n1\n", strings.TrimSuffix(listen(), "}\n"), ", status_tls: ", secure, ", health_tls: ", secure, "}\n",
			"maintenance: {admin_names: [ann]}\n", "clusters:\n", clusterText("main", n1, n2))
	}
	write("first.pem")
	r.up()
	r.settled("main", "n1", "n2")
	before := map[string]string{partStatusTLS: r.addr(partStatusTLS), partHealthTLS: r.addr(partHealthTLS)}
	trusts := func(yes, no *authority) {
		t.Helper()
		for part, at := range before {
			if got := r.addr(part); got != at {
				t.Errorf("%s moved from %s to %s", part, at, got)
			}
			for a, good := range map[*authority]bool{yes: true, no: false} {
				o := r.operator("ann", server, a.person("ann", nil))
				res, err := o.client.Get("https://" + at + "/")
				if err == nil {
					_ = res.Body.Close()
				}
				if (err == nil) != good {
					t.Errorf("%s: a certificate by %s: %v, want good %t", part, a.cert.Subject, err, good)
				}
			}
		}
	}
	trusts(first, second)
	write("none.pem")
	if err := r.reload(); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("a file that cannot be used: %v", err)
	}
	trusts(first, second)
	write("second.pem")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	trusts(second, first)
}

// A connection may outlive the certificate by which it was let in.
func TestACertificateEndsOnAnOpenConnection(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	a := newAuthority(t, "a")
	a.certificate(r.dir)
	r.file("people.pem", a.pem())
	listeners := strings.TrimSuffix(listen(), "}\n") + ", status_tls: {address: \"127.0.0.1:0\", cert_file: cert.pem, key_file: key.pem, client_ca_file: people.pem}}\n"
	r.write(base, listeners, "maintenance: {admin_names: [ann]}\n", "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	o := r.operator("ann", a, a.person("ann", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(2 * time.Second) }))
	o.client.Transport.(*http.Transport).DisableKeepAlives = false
	defer o.client.CloseIdleConnections()
	if code, text := o.call("GET", "/admin/maintenance", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	r.until("the certificate to count no more", func() bool {
		code, _ := o.call("GET", "/admin/maintenance", "")
		if code == 0 {
			t.Fatal("the connection was made anew")
		}
		return code == 401
	})
}
