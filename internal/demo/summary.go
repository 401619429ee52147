package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// clockSlack is how far the lab's moments can lie behind the true ones: it
// polls a promoted node every 2 ms.
const clockSlack = 5 * time.Millisecond

// Summary is what a run measured.
type Summary struct {
	Seconds float64 `json:"seconds"`
	Events  []Event `json:"events"`
	Writes  int     `json:"writes"` // good ones
	Reads   int     `json:"reads"`
	// FailedWrites and FailedReads are operations and connects that ended in an error.
	FailedWrites int `json:"failed_writes"`
	FailedReads  int `json:"failed_reads"`
	// WrongNode counts sessions of the write port that reached a node which was
	// not the writer then, by the port that the session itself reported.
	WrongNode int `json:"sessions_on_wrong_node"`
	Sessions  int `json:"write_sessions"`
	// Errors counts the kinds of errors that clients saw, writers and readers.
	Errors map[string]int `json:"errors,omitempty"`
	// Reloads of HAProxy since it was started.
	Reloads int `json:"haproxy_reloads"`
}

// Event is what one event cost. Times are in milliseconds.
type Event struct {
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
	// DatabaseGap: from the old primary's end to the moment at which the new one
	// was seen writable on an open session of its own. Not pgsteer's.
	DatabaseGap float64 `json:"database_gap_ms"`
	// RoutingGap: from that moment to the end of the first good write through
	// HAProxy by a client that opens a session for each write.
	RoutingGap float64 `json:"routing_gap_ms"`
	// HeldGap: the same for the clients that keep their sessions, the slowest of them.
	HeldGap float64 `json:"held_sessions_gap_ms"`
	// FailedWrites until the last client writes again.
	FailedWrites int `json:"failed_writes"`

	down, writable, woken time.Time
	still                 time.Time // a freeze was complete
}

// measure fills the summary from the clients' samples: held writers, new-session
// writers, readers.
func (s *stage) measure(sum *Summary, samples [][]lab.Sample) {
	held, fresh, reads := samples[0], samples[1], samples[2]
	for i := range sum.Events {
		e := &sum.Events[i]
		e.DatabaseGap = ms(e.writable.Sub(e.down))
		e.RoutingGap = ms(firstWrite(fresh, e.writable, -1).Sub(e.writable))
		for session := range sessions(held) {
			e.HeldGap = max(e.HeldGap, ms(firstWrite(held, e.writable, session).Sub(e.writable)))
		}
		end := e.writable.Add(time.Second)
		for _, x := range slices.Concat(held, fresh) {
			if x.Err != nil && x.End().After(e.down) && x.At.Before(end) {
				e.FailedWrites++
			}
		}
	}
	sum.Errors = make(map[string]int)
	for _, x := range slices.Concat(held, fresh, reads) {
		if x.Err != nil {
			sum.Errors[string(x.Op)+": "+kind(x.Err)]++
		}
	}
	for _, x := range slices.Concat(held, fresh) {
		switch {
		case x.Err != nil:
			sum.FailedWrites++
		case x.Op == lab.Write:
			sum.Writes++
		}
		if x.Op == lab.Connect && x.Err == nil {
			sum.Sessions++
		}
		if x.Port != 0 && x.Err == nil && !s.right(x) {
			sum.WrongNode++
		}
	}
	for _, x := range reads {
		switch {
		case x.Err != nil:
			sum.FailedReads++
		case x.Op == lab.Read:
			sum.Reads++
		}
	}
}

// kind sorts an error as a client would.
func kind(err error) string {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return pg.Code + " " + pg.Message
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return "timeout"
	}
	return "other: " + err.Error()
}

// right reports whether a session was on the writer, for the whole time of the
// operation that it reported.
func (s *stage) right(x lab.Sample) bool {
	for _, w := range s.writers {
		if w.port != x.Port {
			continue
		}
		begun := !x.End().Before(w.from.Add(-clockSlack))
		ended := !w.until.IsZero() && x.At.After(w.until.Add(clockSlack))
		if begun && !ended {
			return true
		}
	}
	return false
}

// firstWrite is when the first good write that began after a moment had ended;
// of one session, or of any with -1.
func firstWrite(samples []lab.Sample, after time.Time, session int) time.Time {
	for _, x := range samples {
		if x.Op == lab.Write && x.Err == nil && x.End().After(after) && (session < 0 || x.Session == session) {
			return x.End()
		}
	}
	return after.Add(time.Hour)
}

func sessions(samples []lab.Sample) map[int]struct{} {
	out := make(map[int]struct{})
	for _, x := range samples {
		out[x.Session] = struct{}{}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// reloads asks HAProxy's master how often it was reloaded.
func (s *stage) reloads(ctx context.Context) int {
	text, err := s.haproxy.MasterCommand(ctx, "show proc")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[1] == "master" {
			n := 0
			_, _ = fmt.Sscan(f[2], &n)
			return n
		}
	}
	return -1
}

// Print writes the summary for people.
func (s *Summary) Print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nEVENT\tWRITER\tDATABASE GAP\tROUTING GAP\tHELD SESSIONS\tFAILED WRITES")
	for _, e := range s.Events {
		fmt.Fprintf(tw, "%s\t%s to %s\t%.0f ms\t%.0f ms\t%.0f ms\t%d\n", e.Name, e.From, e.To, e.DatabaseGap, e.RoutingGap, e.HeldGap, e.FailedWrites)
	}
	_ = tw.Flush()
	fmt.Fprintf(w, `
database gap    old primary's end to the new one being writable: PostgreSQL and its operator, not pgsteer
routing gap     new primary writable to the first good write through HAProxy
held sessions   the same for the slowest of the clients that keep their sessions

sessions on a wrong node   %d of %d
HAProxy reloads            %d
writes                     %d good, %d failed
reads                      %d good, %d failed
time                       %.0f s
`, s.WrongNode, s.Sessions, s.Reloads, s.Writes, s.FailedWrites, s.Reads, s.FailedReads, s.Seconds)
}
