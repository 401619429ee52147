package patroni

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

// serve puts a member on a real socket.
func serve(t *testing.T, h http.Handler, config *tls.Config) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(t.Output(), "", 0)
	if srv.TLS = config; config != nil {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

// ask puts one question over a real socket.
func ask(t *testing.T, o Options, base string) (word, *trouble) {
	t.Helper()
	c := newClient(o)
	defer c.http.CloseIdleConnections()
	r, tr := c.get(t.Context(), question{url: base + pathWord, limit: 5 * time.Second})
	if tr != nil {
		return word{}, tr
	}
	return parseWord(r, "alpha")
}

func TestFailureClasses(t *testing.T) {
	c := patronitest.New("alpha", "a")
	plain := serve(t, c.Handler("a"), nil)
	closed := serve(t, c.Handler("a"), nil)
	closed.Close()
	raw := func(f func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 1024))
				f(conn)
				_ = conn.Close()
			}
		}()
		return "http://" + l.Addr().String()
	}
	head := "HTTP/1.0 200 OK\r\n"
	for _, s := range []struct {
		name, base string
		want       topology.FailureClass // empty: a good answer
	}{
		{"plain", plain.URL, ""},
		{"refused", closed.URL, topology.FailRefused},
		{"no such name", "http://nowhere.invalid:8008", topology.FailName},
		{"HTTPS asked of HTTP", strings.Replace(plain.URL, "http", "https", 1), topology.FailTLS},
		{"closed without an answer", raw(func(net.Conn) {}), topology.FailReset},
		{"reset", raw(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }), topology.FailReset},
		{"not HTTP", raw(func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n")) }), topology.FailContent},
		{"truncated", raw(func(c net.Conn) { _, _ = fmt.Fprintf(c, "%sContent-Length: 900\r\n\r\n{", head) }), topology.FailContent},
		{"endless header", raw(func(c net.Conn) {
			_, _ = c.Write([]byte(head + "X: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n{}"))
		}), topology.FailStore},
	} {
		w, tr := ask(t, Options{}, s.base)
		switch {
		case s.want == "" && (tr != nil || !w.holds):
			t.Errorf("%s: %+v, %+v", s.name, w, tr)
		case s.want != "" && (tr == nil || tr.class != s.want):
			t.Errorf("%s: %+v, want class %s", s.name, tr, s.want)
		}
	}
}

// An endless body ends at the limit, and not at the deadline.
func TestEndlessBody(t *testing.T) {
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 64<<10); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}), nil)
	begin := time.Now()
	if _, tr := ask(t, Options{}, srv.URL); tr == nil || tr.class != topology.FailContent || time.Since(begin) > 4*time.Second {
		t.Errorf("%+v after %v", tr, time.Since(begin))
	}
}

// Where Patroni's own connections end with each answer, those of a proxy before
// it are used again, and closed at the end.
func TestConnectionsAreKept(t *testing.T) {
	var opened, closed, asked atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"patroni":{"scope":"alpha"}}`))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed.Add(1)
		case http.StateActive, http.StateIdle, http.StateHijacked:
		}
	}
	srv.Start()
	defer srv.Close()
	w, err := New(Options{Cluster: "main", Scope: "alpha", Endpoints: []string{srv.URL}, Now: topology.NewTicker(time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, func(topology.Observation) {}) }()
	until(t, "some questions", func() bool { return asked.Load() >= 4 })
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for %d questions", n, asked.Load())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	until(t, "the connection to be closed", func() bool { return closed.Load() == opened.Load() })
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestNoProxyOfTheEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY"} {
		t.Setenv(name, "http://wrong.invalid:1")
	}
	srv := serve(t, patronitest.New("alpha", "a").Handler("a"), nil)
	if _, tr := ask(t, Options{}, srv.URL); tr != nil {
		t.Errorf("%+v", tr)
	}
	if newTransport(nil).Proxy != nil {
		t.Error("the transport looks for a proxy")
	}
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key, a.cert = a.sign(tmpl)
	return a
}

func (a *authority) sign(tmpl *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl.Subject = pkix.Name{CommonName: "test"}
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

// pair is a certificate for an address of this host and for a client.
func (a *authority) pair(ip string) tls.Certificate {
	a.t.Helper()
	key, cert := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.ParseIP(ip)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func TestTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	h := patronitest.New("alpha", "a").Handler("a")
	good := serve(t, h, &tls.Config{Certificates: []tls.Certificate{ours.pair("127.0.0.1")}})
	wrongName := serve(t, h, &tls.Config{Certificates: []tls.Certificate{ours.pair("127.0.0.9")}})
	unknown := serve(t, h, &tls.Config{Certificates: []tls.Certificate{others.pair("127.0.0.1")}})
	mutual := serve(t, h, &tls.Config{
		Certificates: []tls.Certificate{ours.pair("127.0.0.1")}, ClientCAs: ours.pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})
	config := func(own ...tls.Certificate) func(string) *tls.Config {
		return func(host string) *tls.Config {
			return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ours.pool(), ServerName: host, Certificates: own}
		}
	}
	for _, c := range []struct {
		name string
		srv  *httptest.Server
		tls  func(string) *tls.Config
		ok   bool
	}{
		{"good", good, config(), true},
		{"roots of the system", good, nil, false},
		{"another name", wrongName, config(), false},
		{"another authority", unknown, config(), false},
		{"no client certificate", mutual, config(), false},
		{"client certificate", mutual, config(ours.pair("127.0.0.1")), true},
		{"client certificate of another authority", mutual, config(others.pair("127.0.0.1")), false},
	} {
		w, tr := ask(t, Options{TLS: c.tls}, c.srv.URL)
		switch {
		case c.ok && (tr != nil || !w.holds):
			t.Errorf("%s: %+v", c.name, tr)
		case !c.ok && (tr == nil || tr.class != topology.FailTLS):
			t.Errorf("%s: %+v, want class tls", c.name, tr)
		}
	}
}

// The whole watcher over real sockets, with a wrong certificate first.
func TestOverRealSockets(t *testing.T) {
	ca := newAuthority(t)
	c := patronitest.New("alpha", "a", "b")
	var bases []string
	for _, name := range []string{"a", "b"} {
		srv := serve(t, c.Handler(name), &tls.Config{Certificates: []tls.Certificate{ca.pair("127.0.0.1")}})
		bases = append(bases, srv.URL)
		c.Change(func(s *store) {
			e := s.Members[name]
			e.APIURL = srv.URL + "/patroni"
			s.Members[name] = e
		})
	}
	for _, s := range []struct {
		name string
		tls  func(string) *tls.Config
		ok   func(o topology.Observation) bool
	}{
		{"wrong roots", nil, func(o topology.Observation) bool { return o.Failure != nil && o.Failure.Class == topology.FailTLS }},
		{"right roots", func(host string) *tls.Config {
			return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.pool(), ServerName: host}
		}, func(o topology.Observation) bool {
			return o.Authority != nil && o.Authority.Leader == "a" && len(o.Nodes.Nodes) == 2
		}},
	} {
		w, err := New(Options{Cluster: "main", Scope: "alpha", Endpoints: bases[:1], TLS: s.tls, Now: topology.NewTicker(time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		seen := false
		if err := w.Run(ctx, func(o topology.Observation) {
			if !seen && s.ok(o) {
				seen = true
				cancel()
			}
		}); err != nil || !seen {
			t.Errorf("%s: never seen, %v", s.name, err)
		}
		cancel()
	}
}

// Of several endpoints over TLS those that cannot be used are passed over: a port
// where nobody listens, one that is silent, one without TLS, one with another
// authority's certificate. The members are found through the one that is left.
func TestSeveralEndpointsOverTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	c := patronitest.New("alpha", "a", "b")
	secure := func(member string, by *authority) string {
		srv := serve(t, c.Handler(member), &tls.Config{Certificates: []tls.Certificate{by.pair("127.0.0.1")}})
		return srv.URL
	}
	for _, name := range []string{"a", "b"} {
		at := secure(name, ours)
		c.Change(func(s *store) {
			e := s.Members[name]
			e.APIURL = at + "/patroni"
			s.Members[name] = e
		})
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	plain := serve(t, c.Handler("b"), nil)
	w, err := New(Options{
		Cluster: "main", Scope: "alpha", Now: topology.NewTicker(time.Now), Timeout: 300 * time.Millisecond,
		Endpoints: []string{
			"https://" + closed.Addr().String(), "https://" + silent.Addr().String(), strings.Replace(plain.URL, "http:", "https:", 1),
			secure("a", others), secure("b", ours),
		},
		TLS: func(host string) *tls.Config {
			return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ours.pool(), ServerName: host}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var seen *topology.Authority
	if err := w.Run(ctx, func(o topology.Observation) {
		if o.Authority != nil && o.Nodes != nil && seen == nil {
			seen = o.Authority
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if seen == nil || seen.Leader != "a" || seen.SessionAgrees != topology.Yes || len(seen.Members) != 2 {
		t.Errorf("seen %+v, want a by its own word and two members", seen)
	}
}
