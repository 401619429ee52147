package agentcheck

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// piece is a part of a request and the pause before it.
type piece struct {
	after time.Duration
	text  string
}

// converse sends a request in pieces under fake time and returns the answer and
// when it came.
func converse(t *testing.T, s *Server, pieces []piece) (answer string, took time.Duration) {
	t.Helper()
	client, srv := net.Pipe()
	defer client.Close()
	begin := time.Now()
	go func() {
		defer srv.Close()
		s.converse(srv)
	}()
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for _, p := range pieces {
			time.Sleep(p.after)
			if _, err := io.WriteString(client, p.text); err != nil {
				return // answered before the rest came
			}
		}
	})
	b, _ := io.ReadAll(client)
	return string(b), time.Since(begin)
}

// What a request means is not told by its first segment (with or without a line
// end at all): a piece that names nobody is not "unknown" yet, and one that names
// n1 may be on its way to n10.
func TestRequestInPieces(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		pieces []piece
		want   string
		took   time.Duration
	}{
		{"whole", []piece{{0, "main primary n2\n"}}, "down #in recovery\n", 0},
		{"cut in a word", []piece{{0, "main pri"}, {100 * ms, "mary n2\n"}}, "down #in recovery\n", 100 * ms},
		{"cut before the node", []piece{{0, "main primary "}, {299 * ms, "n2\n"}}, "down #in recovery\n", 299 * ms},
		{"cut twice", []piece{{0, "ma"}, {250 * ms, "in primary"}, {250 * ms, " n2\n"}}, "down #in recovery\n", 500 * ms},
		{"cut before the line end", []piece{{0, "main primary n2"}, {20 * ms, "\n"}}, "down #in recovery\n", 20 * ms},
		{"cut in a name that begins like another", []piece{{0, "main primary n1"}, {200 * ms, "0\n"}}, "down #standby\n", 200 * ms},
		{"cut before an address", []piece{{0, "main primary n1"}, {200 * ms, " 10.0.0.9:5432\n"}}, "down #at another address: n1 is at 10.0.0.1:5432\n", 200 * ms},
		{"cut in an address", []piece{{0, "main primary n1 10.0.0.1:5"}, {200 * ms, "432\n"}}, "up 100%\n", 200 * ms},
		{"known without line end", []piece{{0, "main primary n2 10.0.0.2:5432"}}, "down #in recovery\n", 30 * ms},
		{"without line end, an address may follow", []piece{{0, "main primary n2"}}, "down #in recovery\n", 300 * ms},
		{"at another address without line end", []piece{{0, "main primary n2 10.0.0.9:5432"}}, "down #at another address: n2 is at 10.0.0.2:5432\n", 300 * ms},
		{"known in pieces without line end", []piece{{0, "main prim"}, {200 * ms, "ary n2 10.0.0.2:5432"}}, "down #in recovery\n", 230 * ms},
		{"guard without line end", []piece{{0, "main primary !guard"}}, "down #open: n1 is up\n", 30 * ms},
		{"known without line end, another begins like it", []piece{{0, "main primary n1"}}, "up 100%\n", 300 * ms},
		{"the longer one without line end", []piece{{0, "main primary n10"}}, "down #standby\n", 30 * ms},
		{"unknown", []piece{{0, "main primary n9\n"}}, "down #unknown main/primary/n9\n", 0},
		{"unknown without line end", []piece{{0, "main primary n9"}}, "down #unknown main/primary/n9\n", 300 * ms},
		{"unknown cluster without line end", []piece{{0, "nosuch primary n1"}}, "down #unknown nosuch/primary/n1\n", 300 * ms},
		{"too late", []piece{{0, "main pri"}, {301 * ms, "mary n2\n"}}, "down #unknown main/pri\n", 300 * ms},
		{"nothing", nil, "", time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				main := cluster("main")
				main.Pools[0].Nodes = append(main.Pools[0].Nodes, verdict("n10", topology.Down, topology.CodeWrongRole, "standby"))
				got, took := converse(t, newWorld(main).server(t, Options{}), tt.pieces)
				if got != tt.want || took != tt.took {
					t.Errorf("%q after %s, want %q after %s", got, took, tt.want, tt.took)
				}
			})
		})
	}
}

// Pieces without end hold a connection no longer than Timeout.
func TestEndlessRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pieces []piece
		for range 100 {
			pieces = append(pieces, piece{299 * time.Millisecond, "x"})
		}
		if _, took := converse(t, newWorld(cluster("main")).server(t, Options{}), pieces); took != time.Second {
			t.Errorf("held for %s, want 1 s", took)
		}
	})
}

// The end of the stream ends a request at once, whatever it says.
func TestHalfCloseEndsARequest(t *testing.T) {
	s := newWorld(cluster("main")).server(t, Options{ReadQuiet: time.Hour, ReadPatience: time.Hour, Timeout: time.Hour})
	ask := serve(t, s, nil)
	for request, want := range map[string]string{
		"main primary n1": "up 100%\n", "main primary": "down #unknown main/primary\n",
	} {
		c, tcp := ask(request)
		tcp.CloseWrite()
		if got := readAll(t, c); got != want {
			t.Errorf("%q, then the end of the stream: %q, want %q", request, got, want)
		}
	}
}
