package consul

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// get reads key k and returns its value or the trouble.
func get(t *testing.T, c *Client) (string, *trouble) {
	t.Helper()
	q, err := c.Options(t.Context(), Default)
	if err != nil {
		return "", judgeError(err, 0)
	}
	p, _, err := c.KV().Get("k", q)
	if err != nil {
		return "", judgeError(err, time.Second)
	}
	if p == nil {
		return "", nil
	}
	return string(p.Value), nil
}

func newClient(t *testing.T, o ClientOptions) *Client {
	t.Helper()
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func agentWithKey() *consultest.Agent {
	a := consultest.New()
	a.Put("k", "v")
	return a
}

func TestClientIgnoresTheEnvironment(t *testing.T) {
	for _, name := range []string{"ADDR", "TOKEN", "AUTH"} {
		t.Setenv("CONSUL_HTTP_"+name, "wrong.invalid:1")
	}
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", "/nonexistent")
	t.Setenv("CONSUL_HTTP_SSL", "true")
	t.Setenv("CONSUL_CACERT", "/nonexistent")
	t.Setenv("CONSUL_CLIENT_CERT", "/nonexistent")
	t.Setenv("CONSUL_TLS_SERVER_NAME", "wrong.invalid")
	t.Setenv("CONSUL_NAMESPACE", "wrong")
	t.Setenv("CONSUL_PARTITION", "wrong")
	t.Setenv("HTTP_PROXY", "http://wrong.invalid:1")
	a := agentWithKey()
	srv := httptest.NewServer(a)
	defer srv.Close()
	for _, addr := range []string{srv.Listener.Addr().String(), srv.URL} {
		c := newClient(t, ClientOptions{Address: addr, Datacenter: "dc7"})
		if got, tr := get(t, c); got != "v" || tr != nil {
			t.Errorf("%s: %q, %+v; want v", addr, got, tr)
		}
		if pairs, _, err := c.trees(t.Context(), Default, []string{"k"}); err != nil || len(pairs) != 1 {
			t.Errorf("%s: a transaction finds %v, %v", addr, pairs, err)
		}
	}
	for _, r := range a.Requests() {
		if r.Token != "" || r.Query.Encode() != "dc=dc7" {
			t.Errorf("request %+v, want no token and the datacenter alone", r)
		}
	}
}

// A namespace and a partition go with every request, and nothing else does.
func TestClientOfATenant(t *testing.T) {
	a := agentWithKey()
	c := newClient(t, ClientOptions{Transport: a, Namespace: "team", Partition: "az1", Datacenter: "dc7"})
	if got, tr := get(t, c); got != "v" {
		t.Fatalf("%q, %+v; want v", got, tr)
	}
	for mode, want := range map[Consistency]string{Stale: "stale=&", Consistent: "consistent=&", Default: ""} {
		pairs, _, err := c.trees(t.Context(), mode, []string{"k"})
		if err != nil || len(pairs) != 1 {
			t.Fatalf("%v, %v; want k", pairs, err)
		}
		rs := a.Requests()
		last := rs[len(rs)-1]
		query := last.Query.Encode()
		for _, part := range []string{"dc=dc7", "ns=team", "partition=az1", strings.TrimSuffix(want, "&")} {
			if !strings.Contains(query, part) {
				t.Errorf("transaction with %s, want %s in it", query, part)
			}
		}
		if body := string(last.Body); !strings.Contains(body, `"Namespace":"team"`) || !strings.Contains(body, `"Partition":"az1"`) {
			t.Errorf("transaction %s without the tenant", body)
		}
	}
	if rs := a.Requests(); rs[0].Query.Encode() != "dc=dc7&ns=team&partition=az1" {
		t.Errorf("read with %s", rs[0].Query.Encode())
	}
}

func TestClientAddresses(t *testing.T) {
	a := agentWithKey()
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	unix := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	unix.Start()
	defer unix.Close()
	prefixed := httptest.NewServer(http.StripPrefix("/consul", a))
	defer prefixed.Close()
	for _, addr := range []string{"unix://" + sock, prefixed.URL + "/consul/"} {
		c := newClient(t, ClientOptions{Address: addr})
		if got, tr := get(t, c); got != "v" || tr != nil || c.Address() != addr {
			t.Errorf("%s: %q, %+v", addr, got, tr)
		}
		if pairs, _, err := c.trees(t.Context(), Default, []string{"k"}); err != nil || len(pairs) != 1 {
			t.Errorf("%s: a transaction finds %v, %v", addr, pairs, err)
		}
	}
	for _, addr := range []string{"ftp://x", "http://", "http://u:p@x", "x y"} {
		if _, err := NewClient(ClientOptions{Address: addr}); err == nil {
			t.Errorf("address %q is accepted", addr)
		}
	}
}

func TestClientToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	a := agentWithKey()
	c := newClient(t, ClientOptions{TokenFile: file, Transport: a})
	if _, tr := get(t, c); tr == nil || tr.class != topology.FailContent || !strings.Contains(tr.err.Error(), file) {
		t.Fatalf("without a token file: %+v, want trouble with its content", tr)
	}
	steps := []struct{ write, want string }{
		{"one\n", "one"},
		{"second ", "second"},
		{"", "second"}, // a rotation under way
		{"third-token", "third-token"},
		{"two\nlines", "third-token"},
	}
	for _, s := range steps {
		if err := os.WriteFile(file, []byte(s.write), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, tr := get(t, c); tr != nil {
			t.Fatal(tr.err)
		}
		rs := a.Requests()
		if got := rs[len(rs)-1].Token; got != s.want {
			t.Errorf("after %q the token is %q, want %q", s.write, got, s.want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, tr := get(t, c); tr != nil {
		t.Errorf("without the file: %v, want the old token in use", tr.err)
	}
}

func TestFailureClasses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	reset := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer reset.Close()
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>"))
	}))
	defer html.Close()
	html.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	newAuthority(t).write(t, ca)
	cases := []struct {
		name string
		o    ClientOptions
		want topology.FailureClass
	}{
		{"refused", ClientOptions{Address: closed}, topology.FailRefused},
		{"reset", ClientOptions{Address: reset.URL}, topology.FailReset},
		{"no JSON", ClientOptions{Address: html.URL}, topology.FailContent},
		{"no TLS", ClientOptions{Address: "https://" + html.Listener.Addr().String(), CAFile: ca}, topology.FailTLS},
		{"no name", ClientOptions{Address: "name.invalid:8500"}, topology.FailName},
	}
	for _, c := range cases {
		client := newClient(t, c.o)
		_, tr := get(t, client)
		if tr == nil || tr.class != c.want {
			t.Errorf("%s: %+v, want class %s", c.name, tr, c.want)
		}
		if _, _, err := client.trees(t.Context(), Stale, []string{"k"}); err == nil || judgeError(err, time.Second).class != c.want {
			t.Errorf("%s: a transaction fails by %v, want class %s", c.name, err, c.want)
		}
	}
}

func TestFailureClassesByStatus(t *testing.T) {
	got := map[int]topology.FailureClass{}
	for _, status := range []int{301, 400, 401, 403, 429, 500, 503} {
		a := agentWithKey()
		a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Status: status} })
		c := newClient(t, ClientOptions{Transport: a})
		_, tr := get(t, c)
		got[status] = tr.class
		if _, _, err := c.trees(t.Context(), Stale, []string{"k"}); err == nil || judgeError(err, time.Second).class != tr.class {
			t.Errorf("status %d: a transaction fails by %v, want class %s", status, err, tr.class)
		}
	}
	want := map[int]topology.FailureClass{
		301: topology.FailStore, 400: topology.FailStore, 401: topology.FailDenied, 403: topology.FailDenied,
		429: topology.FailStore, 500: topology.FailStore, 503: topology.FailStore,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes by status (-want +got):\n%s", diff)
	}
}

// authority is a certificate that signs itself and others.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// issue makes a certificate for one name, good for servers and clients.
func (a *authority) issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func (a *authority) write(t *testing.T, file string) {
	t.Helper()
	writeFile(t, file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func writeFile(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// tlsServer serves an agent for server.dc1.consul to clients of an authority.
func tlsServer(t *testing.T, ca *authority, a *consultest.Agent) *httptest.Server {
	t.Helper()
	certPEM, keyPEM := ca.issue(t, "server.dc1.consul")
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	srv := httptest.NewUnstartedServer(a)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are the test
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func TestClientTLSAndReload(t *testing.T) {
	dir := t.TempDir()
	caFile, certFile, keyFile := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	first, second := newAuthority(t), newAuthority(t)
	use := func(ca *authority) {
		cert, key := ca.issue(t, "client")
		ca.write(t, caFile)
		writeFile(t, certFile, cert)
		writeFile(t, keyFile, key)
	}
	use(first)
	oldServer, newServer := tlsServer(t, first, agentWithKey()), tlsServer(t, second, agentWithKey())
	options := func(srv *httptest.Server) ClientOptions {
		return ClientOptions{
			Address: srv.Listener.Addr().String(), ServerName: "server.dc1.consul",
			CAFile: caFile, CertFile: certFile, KeyFile: keyFile,
		}
	}
	toOld, toNew := newClient(t, options(oldServer)), newClient(t, options(newServer))
	if got, tr := get(t, toOld); got != "v" {
		t.Fatalf("with the right files: %+v", tr)
	}
	if _, tr := get(t, toNew); tr == nil || tr.class != topology.FailTLS {
		t.Fatalf("a server of another authority: %+v, want TLS trouble", tr)
	}
	wrongName := options(oldServer)
	wrongName.ServerName = "other.dc1.consul"
	if _, tr := get(t, newClient(t, wrongName)); tr == nil || tr.class != topology.FailTLS {
		t.Fatalf("a server with another name: %+v, want TLS trouble", tr)
	}
	use(second)
	if got, tr := get(t, toNew); got != "v" {
		t.Errorf("after the files were replaced: %+v, want them to be used", tr)
	}
	writeFile(t, caFile, []byte("nonsense"))
	if got, tr := get(t, toNew); got != "v" {
		t.Errorf("with a broken CA file: %+v, want the old one to stay", tr)
	}
	for name, o := range map[string]ClientOptions{
		"broken CA":      {CAFile: caFile},
		"missing CA":     {CAFile: "/nonexistent"},
		"cert alone":     {CertFile: certFile},
		"cert without a": {CertFile: caFile, KeyFile: keyFile},
	} {
		if _, err := NewClient(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
