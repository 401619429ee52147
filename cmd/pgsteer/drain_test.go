package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/maintenance"
)

// On a terminal the line changes, elsewhere there is one for each change; the bar is
// full at the deadline and never longer.
func TestProgressOfADrain(t *testing.T) {
	var w bytes.Buffer
	p := progress{w: &w}
	r := someDrain()
	for range 3 {
		p.show(r, r.Began)
	}
	r.Trouble = "away\x1b[2J"
	p.show(r, r.Began)
	p.end()
	if got, want := w.String(), "waiting: in a transaction: 1, others: 1, ended: 0\nwaiting: in a transaction: 1, others: 1, ended: 0; away?[2J\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	w.Reset()
	live := progress{w: &w, live: true}
	live.show(r, r.Began)
	r.Trouble = ""
	live.show(r, r.Deadline.Add(-r.Deadline.Sub(r.Began)/4))
	live.show(r, r.Deadline.Add(1))
	live.end()
	lines := strings.Split(w.String(), "\r")
	for i, want := range []string{"", "[....................] 10m0s left, waiting: in a transaction: 1 (the oldest for 1m30s), others: 1, ended: 0; away?[2J", "[###############.....] 2m30s left,", "[####################] 0s left,"} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	if a, b := len(lines[1]), len(lines[2]); a != b || !strings.HasSuffix(w.String(), "\n") {
		t.Errorf("a shorter line leaves something of a longer one: %d and %d", a, b)
	}
}

// What a list says of a drain: how far it is, what became of it, or who knows.
func TestDrainInAList(t *testing.T) {
	r := someDrain()
	s := maintenance.Sessions{ID: "x", By: "db1 (/var/lib/pgsteer)", Deadline: r.Deadline, EndIdle: true, Terminate: true}
	for _, tt := range []struct {
		how  *admin.Drained
		at   time.Time
		want string
	}{
		{nil, r.Began, "idle ones end, all end at 2026-11-30T12:10:00Z"},
		{nil, r.Deadline, "the time was over at 2026-11-30T12:10:00Z; the agent at db1 (/var/lib/pgsteer) reports"},
		{&admin.Drained{Phase: drain.Waiting, Left: 2, Ended: 1}, r.Began, "waiting, left: 2, ended: 1, idle ones end, all end at 2026-11-30T12:10:00Z"},
		{&admin.Drained{Phase: drain.Left, Left: 2, Ended: 1}, r.Deadline, "left, left: 2, ended: 1"},
		{&admin.Drained{Phase: drain.Done, Ended: 3}, r.Began, "done, left: 0, ended: 3"},
	} {
		if got := drainWords(s, tt.how, tt.at); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.how, got, tt.want)
		}
	}
}

func someDrain() drain.Report {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return drain.Report{Phase: drain.Waiting, Began: noon, Deadline: noon.Add(10 * time.Minute), Left: []drain.Client{
		{PID: 1, State: "active", Transaction: true, AgeUS: 90_000_000}, {PID: 2, State: "idle"},
	}}
}

// An agent that is asked too often is asked again, not before the time that it names:
// it lives, and the drain goes on.
func TestAskedTooOften(t *testing.T) {
	var asked []time.Time
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked = append(asked, time.Now())
		switch len(asked) {
		case 1:
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprintln(w, `{"error":"too many requests from socket; ask again in a second"}`)
		case 2: // it was just told to wait, which is no silence
			panic(http.ErrAbortHandler)
		case 3: // as of something before the agent
			http.Error(w, "slow down", http.StatusTooManyRequests)
		default:
			fmt.Fprintln(w, `{"drain":{"cluster":"main","node":"n2","phase":"done"}}`)
		}
	}))
	defer srv.Close()
	var out, errs bytes.Buffer
	c := maintenanceWait{Target: "main/n2", asked: askedAt(srv)}
	c.Silence = 900 * time.Millisecond // shorter than any pause
	if err := c.Run(t.Context(), streams{&out, &errs}); err != nil || out.String() != "main/n2: nobody is left; left: 0, ended: 0\n" {
		t.Errorf("%v, %q", err, &out)
	}
	lines := strings.Split(errs.String(), "\n")
	if len(lines) < 3 || lines[0] != "the agent is asked too often; asking again in 2s" || !strings.HasSuffix(lines[1], "; asking again") || lines[2] != "the agent is asked too often; asking again in 1s" {
		t.Errorf("it says %q", lines)
	}
	if len(asked) != 4 || asked[1].Sub(asked[0]) < 2*time.Second || asked[3].Sub(asked[2]) < time.Second {
		t.Errorf("asked at %v", asked)
	}
}

func askedAt(srv *httptest.Server) asked {
	return asked{running: running{Address: strings.TrimPrefix(srv.URL, "http://")}}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999999999": 0,
		"Mon, 30 Nov 2026 12:00:30 GMT": 30 * time.Second, "Mon, 30 Nov 2026 11:00:00 GMT": 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
