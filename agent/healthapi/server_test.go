package healthapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// listen serves on loopback until the test ends and returns the address.
func listen(tb testing.TB, s *Server) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, ln) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error("Serve:", err)
		}
	})
	return ln.Addr().String()
}

func dial(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func TestKeepAliveAndLengths(t *testing.T) {
	s, f := mainCluster()
	c := dial(t, listen(t, server(t, s, f, Options{})))
	in := bufio.NewReader(c)
	lengths := make(map[string]int64)
	for _, method := range []string{"HEAD", "GET", "OPTIONS", "POST", "GET"} { // on one connection
		fmt.Fprintf(c, "%s /clusters/main/nodes/n1/primary HTTP/1.1\r\nHost: x\r\n\r\n", method)
		r, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatal(method, err)
		}
		if r.ContentLength < 0 || r.Header.Get("Content-Length") == "" {
			t.Errorf("%s has no Content-Length", method)
		}
		lengths[method] = r.ContentLength
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	if lengths["HEAD"] != lengths["GET"] || lengths["OPTIONS"] != 0 {
		t.Errorf("lengths %v, want HEAD as GET and none for OPTIONS", lengths)
	}
}

func TestRawRequests(t *testing.T) {
	s, f := mainCluster()
	s.Pools[1].Nodes[1].Verdict = 0
	addr := listen(t, server(t, s, f, Options{Local: NodeRef{"main", "n1"}}))
	long := "GET /primary HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 20_000) + "\r\n\r\n"
	for request, want := range map[string]string{
		"OPTIONS / HTTP/1.0\r\n\r\n":                                            "HTTP/1.0 200",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n":                                 "HTTP/1.1 404",
		"GET //primary HTTP/1.0\r\n\r\n":                                        "HTTP/1.0 200",
		"GET /clusters/main/pools/replica/nodes/n2 HTTP/1.1\r\nHost: x\r\n\r\n": "",
		"nonsense\r\n\r\n":                                                      "HTTP/1.1 400",
		"GET /clusters/main/nodes/n1/ HTTP/1.0\r\n\r\n":                         "HTTP/1.0 200",
		"POST /primary HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n":  "HTTP/1.1 405", // whose body never comes
		"GET /primary HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi":       "HTTP/1.1 200",
		"CONNECT /primary HTTP/1.1\r\nHost: x\r\n\r\n":                          "HTTP/1.1 405",
		"GET /primary HTTP/1.1\r\n\r\n":                                         "HTTP/1.1 400", // 1.1 wants a Host
		"BREW /primary HTTP/1.1\r\nHost: x\r\n\r\n":                             "HTTP/1.1 405",
		"GET /%zz HTTP/1.0\r\n\r\n":                                             "HTTP/1.1 400",
		"GET /primary HTTP/2.0\r\nHost: x\r\n\r\n":                              "HTTP/1.1 505",
		long: "HTTP/1.1 431",
	} {
		c := dial(t, addr)
		_, _ = io.WriteString(c, request)
		b := make([]byte, len("HTTP/1.1 200"))
		n, err := io.ReadFull(c, b)
		if got := string(b[:n]); got != want {
			t.Errorf("%.40q: got %q (%v), want %q", request, got, err, want)
		}
		c.Close()
	}
}

func TestSlowHeaderIsCut(t *testing.T) {
	s, f := mainCluster()
	addr := listen(t, server(t, s, f, Options{HeaderTimeout: 50 * time.Millisecond}))
	c := dial(t, addr)
	_, _ = io.WriteString(c, "GET /primary HT")
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a request that never ends is not cut")
	}
}

func TestConnectionLimit(t *testing.T) {
	s, f := mainCluster()
	srv := server(t, s, f, Options{MaxConns: 1})
	addr := listen(t, srv)
	get := func(c net.Conn) string {
		_, _ = io.WriteString(c, "GET /clusters/main/nodes/n1/primary HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, len("HTTP/1.1 200"))
		n, _ := io.ReadFull(c, b)
		return string(b[:n])
	}
	first, second := dial(t, addr), dial(t, addr)
	if got := get(first); got != "HTTP/1.1 200" {
		t.Errorf("within the limit: %q", got)
	}
	if got := get(second); got != "" {
		t.Errorf("above the limit: %q", got)
	}
	if srv.Counters().Rejected.Load() != 1 {
		t.Error("the rejected connection is not counted")
	}
	first.Close()
	for get(dial(t, addr)) == "" { // the place comes free
	}
}

// Thousands ask at the same moment, while hundreds of others hold connections
// without a word: everybody who asks is answered.
func TestThousandsOfCheckers(t *testing.T) {
	s, f := mainCluster()
	srv := server(t, s, f, Options{Local: NodeRef{"main", "n1"}})
	addr := listen(t, srv)
	for range 200 {
		dial(t, addr)
	}
	const checkers = 2000
	conns := make([]net.Conn, checkers)
	for i := range conns {
		conns[i] = dial(t, addr)
	}
	answered := make(chan string, checkers)
	for _, c := range conns {
		go func() {
			_, _ = io.WriteString(c, "HEAD /primary HTTP/1.1\r\nHost: x\r\n\r\n")
			b := make([]byte, len("HTTP/1.1 200"))
			n, _ := io.ReadFull(c, b)
			answered <- string(b[:n])
		}()
	}
	for range checkers {
		if got := <-answered; got != "HTTP/1.1 200" {
			t.Fatalf("got %q", got)
		}
	}
	if n := srv.Counters().Rejected.Load(); n != 0 {
		t.Errorf("%d connections were rejected", n)
	}
}

// A client that asks and never reads holds up nobody, and is cut in the end.
func TestSlowReaderIsCut(t *testing.T) {
	s, f := mainCluster()
	addr := listen(t, server(t, s, f, Options{Local: NodeRef{"main", "n1"}, Timeout: 200 * time.Millisecond}))
	c := dial(t, addr)
	request := []byte("GET /patroni HTTP/1.1\r\nHost: x\r\n\r\n")
	for {
		if _, err := c.Write(request); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a client that never reads is not cut")
			}
			return
		}
	}
}

// Without TLS on the TLS port a client gets 400, and the failure is counted.
func TestTLS(t *testing.T) {
	issued := httptest.NewUnstartedServer(nil)
	issued.StartTLS() // for its certificate
	defer issued.Close()
	s, f := mainCluster()
	srv := server(t, s, f, Options{Local: NodeRef{"main", "n1"}, TLS: &tls.Config{Certificates: issued.TLS.Certificates, MinVersion: tls.VersionTLS12}})
	addr := listen(t, srv)
	client := issued.Client()
	r, err := client.Get("https://" + addr + "/primary")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK || r.ProtoMajor != 1 {
		t.Errorf("over TLS: %s %s", r.Proto, r.Status)
	}
	client.CloseIdleConnections()
	plain := dial(t, addr)
	_, _ = io.WriteString(plain, "GET /primary HTTP/1.0\r\n\r\n")
	b, _ := io.ReadAll(plain)
	for end := time.Now().Add(10 * time.Second); srv.Counters().Handshakes.Load() == 0 && time.Now().Before(end); {
		runtime.Gosched() // the answer is written before it is counted
	}
	if !strings.HasPrefix(string(b), "HTTP/1.0 400") || srv.Counters().Handshakes.Load() != 1 {
		t.Errorf("without TLS: %q, %d failures counted", b, srv.Counters().Handshakes.Load())
	}
}

// Clients that open a connection to the TLS port and are silent, or send their
// hello byte by byte, hold up nobody (patroni#3705: five of them stop a Patroni),
// and are cut within HeaderTimeout.
func TestSilentTLSClients(t *testing.T) {
	issued := httptest.NewUnstartedServer(nil)
	issued.StartTLS() // for its certificate
	defer issued.Close()
	s, f := mainCluster()
	srv := server(t, s, f, Options{
		Local: NodeRef{"main", "n1"}, HeaderTimeout: 500 * time.Millisecond,
		TLS: &tls.Config{Certificates: issued.TLS.Certificates, MinVersion: tls.VersionTLS12},
	})
	addr := listen(t, srv)
	client := issued.Client()
	defer client.CloseIdleConnections()
	silent := make([]net.Conn, 300)
	for i := range silent {
		silent[i] = dial(t, addr)
		if i%2 == 0 {
			_, _ = silent[i].Write([]byte{22, 3, 1}) // the beginning of a hello
		}
	}
	for range 20 { // each on a connection of its own
		r, err := client.Get("https://" + addr + "/primary")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		client.CloseIdleConnections()
		if r.StatusCode != http.StatusOK {
			t.Errorf("/primary is %d beside silent clients", r.StatusCode)
		}
	}
	for _, c := range silent {
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a client that never says hello is not cut")
		}
	}
}

// A 503 says when to come again; a mistake in the request does not.
func TestRetryAfter(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{Local: NodeRef{"main", "n1"}, DrainStatus: http.StatusNotFound})
	for target, want := range map[string]string{
		"/primary": "", "/replica": "1", "/clusters/main/pools/replica/nodes/n1": "1", "/clusters/main/pools/replica/nodes/n2": "",
		"/clusters/main/pools/replica/nodes/n3": "", "/nosuch": "", "/replica?lag=1M": "", "/failsafe": "1", "/clusters/nosuch/cluster": "1",
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			if _, answer := ask(h, method, target); answer.Header().Get("Retry-After") != want {
				t.Errorf("%s %s (%d): Retry-After %q, want %q", method, target, answer.Code, answer.Header().Get("Retry-After"), want)
			}
		}
	}
}

// Every answer has its reason in the header, and with GET in the body, in one wording.
func TestReasonInBodyAndHeader(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{Local: NodeRef{"main", "n1"}})
	for _, target := range []string{
		"/primary", "/replica", "/health", "/readiness", "/liveness", "/patroni", "/read-only?lag=1", "/sync", "/replica?tag_zone=az-2",
		"/replica?replication_state=streaming", "/clusters/main/nodes/n3/replica?lag=10s", "/clusters/main/nodes/nosuch/primary",
		"/clusters/main/pools/replica/nodes/n3", "/clusters/main/pools/replica/nodes/nosuch",
	} {
		status, answer := ask(h, "GET", target)
		r, _ := decode(t, answer.Body.String())["reason"].(map[string]any)
		code, _ := r["code"].(string)
		text, _ := r["text"].(string)
		if want := strings.TrimPrefix(code+": "+text, ": "); answer.Header().Get("X-Pgsteer-Reason") != want || text == "" {
			t.Errorf("%s (%d): header %q, body %q", target, status, answer.Header().Get("X-Pgsteer-Reason"), want)
		}
		for _, method := range []string{"HEAD", "OPTIONS"} {
			_, other := ask(h, method, target)
			if other.Code != status || other.Header().Get("X-Pgsteer-Reason") != answer.Header().Get("X-Pgsteer-Reason") || other.Body.Len() != 0 {
				t.Errorf("%s %s: %d %q, as GET %d", method, target, other.Code, other.Header().Get("X-Pgsteer-Reason"), status)
			}
		}
	}
}
