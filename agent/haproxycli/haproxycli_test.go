package haproxycli

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answering is a socket that says something to every line, byte by byte.
func answering(t *testing.T, answer string) Socket {
	t.Helper()
	return Socket{Address: "fake", Dial: func(context.Context, string, string) (net.Conn, error) {
		client, srv := net.Pipe()
		go func() {
			defer srv.Close()
			var b [1]byte
			for b[0] != '\n' {
				if _, err := srv.Read(b[:]); err != nil {
					return
				}
			}
			for i := range answer {
				if _, err := io.WriteString(srv, answer[i:i+1]); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

func TestAnswers(t *testing.T) {
	// Taken from HAProxy 2.6: success, an error of one line, success, information.
	four := "\nNo such server.\n\n\nName: HAProxy\nPid: 7\nStopping: 1\n\n"
	got, err := answering(t, four).Answers(t.Context(), []string{"a", "b", "c", "d"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", "No such server.", "", "Name: HAProxy\nPid: 7\nStopping: 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p := ParseInfo(got[3]); p.PID != "7" || !p.Stopping {
		t.Errorf("process %+v", p)
	}
	for _, bad := range []string{"", "\n", "\ncut of", four + "\n"} {
		if got, err := answering(t, bad).Answers(t.Context(), []string{"a", "b", "c", "d"}); err == nil {
			t.Errorf("%q counts as the answers %q", bad, got)
		}
	}
}

func TestAskReadsToTheEnd(t *testing.T) {
	long := strings.Repeat("row of a table\n", 1000)
	if got, err := answering(t, long+"\n").Ask(t.Context(), "show"); err != nil || got+"\n" != long {
		t.Errorf("%d bytes of %d, %v", len(got), len(long), err)
	}
	if got, err := answering(t, "Server deleted.\n").Ask(t.Context(), "del"); err != nil || got != "Server deleted." {
		t.Errorf("an answer without an empty line: %q, %v", got, err)
	}
	if got, err := answering(t, "0x1: srv=n1").Ask(t.Context(), "show sess"); err == nil {
		t.Errorf("half a line counts: %q", got)
	}
}

func TestSilenceEnds(t *testing.T) {
	client, srv := net.Pipe()
	defer srv.Close()
	s := Socket{Timeout: 10 * time.Millisecond, Dial: func(context.Context, string, string) (net.Conn, error) { return client, nil }}
	if _, err := s.Ask(t.Context(), "show info"); err == nil {
		t.Error("a socket that says nothing is no error")
	}
}

func TestParseProcesses(t *testing.T) {
	got := ParseProcesses(`#<PID>          <type>          <reloads>       <uptime>        <version>      
100             master          2 [failed: 1]   0d00h00m07s     2.6.12
# workers
103             worker          0               0d00h00m01s     2.6.13-1+deb12u4
# old workers
101             worker          2               0d00h00m07s     2.6.12
102             worker          1               0d00h00m04s     2.6.12
# programs
104             worker          0               0d00h00m04s     -

`)
	want := Processes{Workers: map[int]bool{103: true}, Old: map[int]bool{101: true, 102: true}, Failed: 1, Version: "2.6.13-1+deb12u4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !got.Has(101) || !got.Has(103) || got.Has(104) {
		t.Error("Has does not follow the lists")
	}
}

// A master whose workers all are on their way out is one; another socket is none.
func TestProcesses(t *testing.T) {
	const old = "100 master 1 [failed: 0] 0d 2.6.12\n# workers\n# old workers\n101 worker 1 0d 2.6.12\n\n"
	if p, err := answering(t, old).Processes(t.Context()); err != nil || !p.Old[101] {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := answering(t, "Unknown command\n\n").Processes(t.Context()); err == nil {
		t.Errorf("the answer of another socket counts as %+v", p)
	}
}

func TestParseRefusesSocketsOnANetwork(t *testing.T) {
	for socket, good := range map[string]bool{
		"/run/haproxy/admin.sock": true, "127.0.0.1:9999": true, "[::1]:9999": true, "localhost:9999": true,
		"10.0.0.1:9999": false, "lb.example:9999": false, "admin.sock": false, "": false,
	} {
		if _, err := Parse(socket); (err == nil) != good {
			t.Errorf("Parse(%q) = %v, want good: %t", socket, err, good)
		}
	}
}
