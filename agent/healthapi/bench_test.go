package healthapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// BenchmarkHealth compares with a handler of net/http that answers every request
// with the same bytes, and with a real Patroni: same requests, taken in turns within
// one run, while the view changes ten times a second. %_bare is the share of the bare
// handler's rate that is reached, x_patroni how many times Patroni's, both the median
// of all turns. Patroni closes each connection, whatever it is asked, so that its
// figures are those of a connection for each check, in every row. With as many clients
// as the others have, its queue of five overflows; what it can with five clients, its
// best, is patroni5 and x_patroni5. All share the machine with their clients.
func BenchmarkHealth(b *testing.B) {
	patroni := patroniAddress(b)
	for _, bb := range []struct {
		name, request string
		theirs        string // the target at Patroni; empty: the same
		keep          bool
	}{
		{"GET", "GET /primary HTTP/1.1\r\nHost: x\r\n\r\n", "", true},
		{"HEAD", "HEAD /clusters/main/nodes/n2/replica?lag=16MB HTTP/1.1\r\nHost: x\r\n\r\n", "/read-only?lag=16MB", true},
		{"OneShotGET", "GET /primary HTTP/1.0\r\n\r\n", "", false},
		{"OneShot", "OPTIONS / HTTP/1.0\r\n\r\n", "", false}, // HAProxy's option httpchk
	} {
		b.Run(bb.name, func(b *testing.B) {
			s, f := mainCluster()
			srv := server(b, s, f, Options{Local: NodeRef{"main", "n1"}})
			changing(b, srv.opts.Views)
			ours, bare := newChecker(b, listen(b, srv), bb.request), newChecker(b, bareServer(b, srv, bb.request), bb.request)
			ours.keep, bare.keep = bb.keep, bb.keep
			theirs := newPatroniCheckers(b, patroni, bb.request, bb.theirs)
			b.ResetTimer()
			var shares []float64
			for left := b.N; left > 0; left -= slice { // in turns, so that a noisy neighbour meets all
				n := min(left, slice)
				o := ours.run(b, n)
				shares = append(shares, bare.run(b, n).Seconds()/o.Seconds())
				theirs.turn(b, o/time.Duration(n))
			}
			b.StopTimer()
			b.ReportMetric(ours.rate(), "checks/s")
			b.ReportMetric(ours.p99(), "p99-µs")
			b.ReportMetric(bare.rate(), "bare/s")
			b.ReportMetric(bare.p99(), "bare-p99-µs")
			b.ReportMetric(100*median(shares), "%_bare")
			theirs.report(b)
			b.ReportMetric(0, "ns/op") // of a request to each, which says nothing
		})
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkAnswer is the handler alone: an answer that is kept, and one that is
// made anew.
func BenchmarkAnswer(b *testing.B) {
	s, f := mainCluster()
	srv := server(b, s, f, Options{Local: NodeRef{"main", "n1"}})
	r, err := http.NewRequest(http.MethodGet, "/primary", nil)
	if err != nil {
		b.Fatal(err)
	}
	r.RequestURI = "/primary"
	w := blackHole{}
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			srv.ServeHTTP(w, r)
		}
	})
	b.Run("anew", func(b *testing.B) {
		for b.Loop() {
			srv.opts.Views.Refresh("main", &topology.View{Snapshot: s, Facts: f, ValidUntil: now + 1})
			srv.ServeHTTP(w, r)
		}
	})
}

// blackHole is a ResponseWriter that forgets.
type blackHole http.Header

func (h blackHole) Header() http.Header         { return http.Header(h) }
func (h blackHole) Write(b []byte) (int, error) { return len(b), nil }
func (h blackHole) WriteHeader(int)             {}

// changing gives the cluster another view ten times a second, until the test ends.
func changing(b *testing.B, views *latest.Map[string, topology.View]) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				v := *views.Get("main")
				views.Refresh("main", &v)
			}
		}
	})
	b.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// bareServer answers everything with the body that srv has for a request.
func bareServer(b *testing.B, srv *Server, request string) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	method, rest, _ := strings.Cut(request, " ")
	target, _, _ := strings.Cut(rest, " ")
	status, answer := ask(srv, method, target)
	body := answer.Body.Bytes()
	bare := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = bare.Serve(ln)
	}()
	b.Cleanup(func() {
		_ = bare.Close()
		<-done
	})
	return ln.Addr().String()
}

// checkers is how many clients ask at the same time, slice how many requests one
// server gets before it is the other's turn.
const checkers, slice = 32, 512

// checker puts one request again and again and keeps the times.
type checker struct {
	address string
	request []byte
	length  int // of an answer; 0: it ends with the connection
	keep    bool
	clients int

	mu    sync.Mutex // guards what follows
	took  []time.Duration
	spent time.Duration
}

func newChecker(b *testing.B, address, request string) *checker {
	c := &checker{address: address, request: []byte(request), clients: checkers}
	conn := c.dial(b)
	closing := strings.Replace(request, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
	if _, err := io.WriteString(conn, closing); err != nil {
		b.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(all), "HTTP/1.") || !strings.Contains(string(all[:13]), "200") {
		b.Fatalf("%q: %q, %v", request, all, err)
	}
	c.length = len(all)
	if strings.Contains(request, "HTTP/1.1") {
		c.length -= len("Connection: close\r\n")
	}
	return c
}

func (c *checker) dial(b *testing.B) net.Conn {
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

// run puts n requests, by all clients together, and returns how long they took.
func (c *checker) run(b *testing.B, n int) time.Duration {
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range c.clients {
		wg.Go(func() {
			took, err := c.client((n + i) / c.clients)
			if err != nil {
				b.Error(err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.took = append(c.took, took...)
		})
	}
	wg.Wait()
	spent := time.Since(begin)
	c.spent += spent
	return spent
}

func (c *checker) client(n int) (took []time.Duration, err error) {
	var conn net.Conn
	buffer := make([]byte, c.length)
	for range n {
		begin := time.Now()
		if conn == nil {
			if conn, err = net.Dial("tcp", c.address); err != nil {
				return took, err
			}
		}
		if _, err = conn.Write(c.request); err != nil {
			return took, err
		}
		if c.length == 0 {
			_, err = io.Copy(io.Discard, conn)
		} else {
			_, err = io.ReadFull(conn, buffer)
		}
		if err != nil {
			return took, fmt.Errorf("after %q: %w", buffer, err)
		}
		took = append(took, time.Since(begin))
		if !c.keep {
			conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		conn.Close()
	}
	return took, nil
}

func (c *checker) rate() float64 { return float64(len(c.took)) / c.spent.Seconds() }

func (c *checker) p99() float64 {
	slices.Sort(c.took)
	return float64(c.took[len(c.took)*99/100].Microseconds())
}
