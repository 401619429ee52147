package refusal

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// of makes a node's verdict; reasons are code and text.
func of(node string, v topology.Verdict, reasons ...string) topology.NodeVerdict {
	n := topology.NodeVerdict{Node: node, Verdict: v}
	for i := 0; i < len(reasons); i += 2 {
		n.Reasons = append(n.Reasons, topology.Reason{Code: topology.Code(reasons[i]), Text: reasons[i+1]})
	}
	return n
}

// views has the pool "primary" of the cluster "main".
func views(validUntil topology.Mono, nodes ...topology.NodeVerdict) *latest.Map[string, topology.View] {
	var m latest.Map[string, topology.View]
	pools := []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite, Nodes: nodes}}
	m.Set("main", &topology.View{Snapshot: &topology.Snapshot{Cluster: "main", Complete: true, Pools: pools}, ValidUntil: validUntil})
	return &m
}

// start serves on loopback until the test ends and returns the address.
func start(t *testing.T, o Options) (*Server, string) {
	t.Helper()
	o.Cluster = "main"
	if o.Pool == "" {
		o.Pool = "primary"
	}
	o.Now = func() topology.Clock { return topology.Clock{Mono: 100} }
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

// refused connects as a client does and returns what the server said.
func refused(t *testing.T, addr, params string) *pgconn.PgError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	host, port, _ := net.SplitHostPort(addr)
	c, err := pgconn.Connect(ctx, "host="+host+" port="+port+" user=app dbname=app "+params)
	if err == nil {
		_ = c.Close(ctx)
		t.Fatal("a session was let in")
	}
	told, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		t.Fatalf("the client saw %v, want an error of a server", err)
	}
	if told.Severity != "FATAL" {
		t.Errorf("severity %q, want FATAL", told.Severity)
	}
	return told
}

const maintained = "maintenance"

// The word follows the decision: an operator's word is an end of the way for
// libpq, everything else is one for this host alone.
func TestWord(t *testing.T) {
	for name, c := range map[string]struct {
		views *latest.Map[string, topology.View]
		pool  string
		code  string
		text  string
	}{
		"writer in maintenance": {views(200, of("n1", topology.Drain, maintained, "new kernel"), of("n2", topology.Down, "wrong_role", "a standby")), "", "57P01", "pool primary of cluster main is out for maintenance: new kernel"},
		"after its drain":       {views(200, of("n1", topology.Down, maintained, "new kernel")), "", "57P01", "new kernel"},
		"dead and in maintenance": {
			views(200, of("n1", topology.Down, "refused", "it refuses connections", maintained, "new kernel")), "", "57P03", "no node of pool primary of cluster main takes sessions right now",
		},
		"standby in maintenance, no writer": {
			views(200, of("n1", topology.Down, "refused", "it refuses"), of("n2", topology.Drain, maintained, "kernel", "wrong_role", "a standby")), "", "57P03", "no node",
		},
		"no writer":      {views(200, of("n1", topology.Down, "refused", "10.0.0.1 refuses")), "", "57P03", "no node"},
		"up again":       {views(200, of("n1", topology.Up, "writer", "holds the key")), "", "57P03", "has a node again"},
		"undecided":      {views(200, of("n1", topology.Undecided, "no_evidence", "")), "", "57P03", "nothing is decided yet"},
		"a view too old": {views(99, of("n1", topology.Drain, maintained, "kernel")), "", "57P03", "nothing is decided yet"},
		"no view":        {new(latest.Map[string, topology.View]), "", "57P03", "nothing is decided yet"},
		"no such pool":   {views(200), "replica", "57P03", "nothing is decided yet for pool replica"},
	} {
		t.Run(name, func(t *testing.T) {
			s, addr := start(t, Options{Views: c.views, Pool: c.pool})
			told := refused(t, addr, "sslmode=prefer")
			if told.Code != c.code || !strings.Contains(told.Message, c.text) {
				t.Errorf("told %s %q, want %s %q", told.Code, told.Message, c.code, c.text)
			}
			if strings.Contains(told.Message, "10.0.0.1") {
				t.Errorf("told an address to who has not logged in: %q", told.Message)
			}
			one, other := s.counters.Maintenance.Load(), s.counters.Unavailable.Load()
			if one+other != 1 || (one == 1) != (c.code == "57P01") {
				t.Errorf("counted %d of 57P01 and %d of 57P03", one, other)
			}
		})
	}
}

// certificate is one for 127.0.0.1, signed by itself.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxy"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}

// Who insists on TLS hears the word by it, asked for or begun with.
func TestTLS(t *testing.T) {
	pair, roots := certificate(t)
	_, addr := start(t, Options{
		Views: views(200, of("n1", topology.Drain, maintained, "new kernel")),
		TLS:   &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"postgresql"}},
	})
	if told := refused(t, addr, "sslmode=require"); told.Code != "57P01" {
		t.Errorf("asked for: told %s", told.Code)
	}
	if told := refused(t, addr, "sslmode=disable"); told.Code != "57P01" {
		t.Errorf("without TLS: told %s", told.Code)
	}
	d := tls.Dialer{Config: &tls.Config{RootCAs: roots, NextProtos: []string{"postgresql"}}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; p != "postgresql" {
		t.Errorf("the protocol is %q, want postgresql", p)
	}
	f := pgproto3.NewFrontend(c, c)
	f.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion32, Parameters: map[string]string{"user": "app"}})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := f.Receive()
	if told, ok := m.(*pgproto3.ErrorResponse); !ok || told.Code != "57P01" {
		t.Errorf("begun with: told %v, %v", m, err)
	}
}

// A client that insists on TLS where there is none gives up by itself.
func TestNoTLS(t *testing.T) {
	s, addr := start(t, Options{Views: views(200)})
	host, port, _ := net.SplitHostPort(addr)
	_, err := pgconn.Connect(t.Context(), "host="+host+" port="+port+" user=app sslmode=require")
	if err == nil || !strings.Contains(err.Error(), "refused TLS") {
		t.Errorf("the client saw %v, want that there is no TLS", err)
	}
	for end := time.Now().Add(10 * time.Second); s.counters.Unheard.Load() == 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it was not counted")
		}
	}
}

// Whatever a client says, it is let go within the timeout, and those that say no
// PostgreSQL hear nothing.
func TestStrangeClients(t *testing.T) {
	message := func(code uint32, rest string) string {
		b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)))
		return string(binary.BigEndian.AppendUint32(b, code)) + rest
	}
	const ssl, gss, cancel = 80877103, 80877104, 80877102
	for name, c := range map[string]struct{ says, hears string }{
		"nothing":            {"", ""},
		"half a length":      {"\x00\x00", ""},
		"a length of 2 GB":   {"\x7f\xff\xff\xff\x00\x03\x00\x00", ""},
		"HTTP":               {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"a cancel":           {message(cancel, "\x00\x00\x00\x01\x00\x00\x00\x02"), ""},
		"an old protocol":    {message(2<<16, "user\x00app\x00\x00"), ""},
		"TLS without TLS":    {"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", ""},
		"GSSAPI, then TLS":   {message(gss, "") + message(ssl, "") + message(3<<16, "user\x00app\x00\x00"), "NNE"},
		"asking for ever":    {strings.Repeat(message(ssl, ""), 50), "NNN"},
		"a startup at once":  {message(3<<16, "user\x00app\x00\x00"), "E"},
		"more than it needs": {message(3<<16, "user\x00app\x00\x00") + strings.Repeat("x", 1<<20), "E"},
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := start(t, Options{Views: views(200), Timeout: 300 * time.Millisecond})
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			go io.WriteString(conn, c.says)
			got, err := io.ReadAll(conn)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Fatal("the connection was held")
			}
			heard, _, _ := strings.Cut(string(got), "\x00")
			if heard != c.hears {
				t.Errorf("heard %q, want %q", heard, c.hears)
			}
		})
	}
}

// A client is told at once: no time passes between its first packet and the last word, so
// that no pause or deadline of ours is in its wait.
func TestToldWithoutATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{
			Cluster: "main", Pool: "primary", Views: views(200, of("n1", topology.Drain, maintained, "new kernel")),
			Now: func() topology.Clock { return topology.Clock{Mono: 100} },
		})
		if err != nil {
			t.Fatal(err)
		}
		client, server := net.Pipe()
		var serving sync.WaitGroup
		serving.Go(func() { s.refuse(server); _ = server.Close() })
		begin := time.Now()
		f := pgproto3.NewFrontend(client, client)
		f.Send(&pgproto3.SSLRequest{})
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		f.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app"}})
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
		m, err := f.Receive()
		if told, ok := m.(*pgproto3.ErrorResponse); err != nil || !ok || told.Code != "57P01" {
			t.Errorf("the client was told %+v, %v", m, err)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("the client waited for %s", d)
		}
		_ = client.Close()
		serving.Wait()
	})
}
