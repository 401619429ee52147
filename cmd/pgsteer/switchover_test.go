package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/switchover"
)

// What the commands ask, and what they say and return for each answer.
func TestSwitchoverAndPgBouncer(t *testing.T) {
	var asked string
	answer := func(http.ResponseWriter) {}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked = strings.Join([]string{r.Method, r.URL.Path, string(b), r.Header.Get("Authorization")}, " ")
		answer(w)
	}))
	defer srv.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("ann secret-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	line := func(w http.ResponseWriter, e switchover.Event) {
		if err := json.NewEncoder(w).Encode(e); err != nil {
			t.Error(err)
		}
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	for _, tt := range []struct {
		args      string
		answer    func(http.ResponseWriter)
		code      int
		asked     string
		out, errs string
	}{
		{"switchover main --to n2 --limit 5s --force", func(w http.ResponseWriter) {
			line(w, switchover.Event{At: at, Text: "it decides"})
			line(w, switchover.Event{Result: &switchover.Result{Writer: "n2"}})
		}, 0, `POST /admin/switchover/main {"to":"n2","limit":"5s","force":true} Bearer secret-0123456789`, "12:00:00.000 it decides\n", ""},
		{"switchover main", func(w http.ResponseWriter) {
			line(w, switchover.Event{Result: &switchover.Result{Error: "no\nand no"}})
		}, 1, `POST /admin/switchover/main {} Bearer secret-0123456789`, "", "pgsteer: no; and no\n"},
		{"switchover main", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintln(w, `{"error":"n1 is the writer already"}`)
		}, 1, `POST /admin/switchover/main {} Bearer secret-0123456789`, "", "pgsteer: n1 is the writer already\n"},
		{
			"switchover main", func(w http.ResponseWriter) { line(w, switchover.Event{At: at, Text: "paused"}) },
			1, `POST /admin/switchover/main {} Bearer secret-0123456789`, "12:00:00.000 paused\n", "went away in the middle",
		},
		{
			"switchover main", func(w http.ResponseWriter) { // as when it is killed
				line(w, switchover.Event{At: at, Text: "paused"})
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				panic(http.ErrAbortHandler)
			},
			1, `POST /admin/switchover/main {} Bearer secret-0123456789`, "12:00:00.000 paused\n",
			"went away in the middle (unexpected EOF). What it has paused is resumed as soon as it goes on, at its end, or at its next start; what the authority was asked for it may still do",
		},
		{"switchover ../x", nil, 1, "", "", "the agent was not asked"},
		{"pgbouncer pause edge app --for 30s", func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{"status":"pause done","databases":["app"]}`)
		}, 0, `POST /admin/pgbouncer/edge/pause {"databases":["app"],"for":"30s"} Bearer secret-0123456789`, "pause done: edge app\n", ""},
		{"pgbouncer resume edge", func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{"status":"resume done","databases":["app"],"note":"a switchover held it"}`)
		}, 0, `POST /admin/pgbouncer/edge/resume {} Bearer secret-0123456789`, "resume done: edge app; a switchover held it\n", ""},
		{"pgbouncer suspend edge", nil, 2, "", "", "must be one of"},
	} {
		asked, answer = "", tt.answer
		var out, errs bytes.Buffer
		args := append(strings.Fields(tt.args), "--address", strings.TrimPrefix(srv.URL, "http://"), "--token-file", token)
		if code := run(args, streams{&out, &errs}); code != tt.code || asked != tt.asked || out.String() != tt.out || !strings.Contains(errs.String(), tt.errs) {
			t.Errorf("%s: code %d, asked %q, out %q, err %q; want %d, %q, %q, %q", tt.args, code, asked, out.String(), errs.String(), tt.code, tt.asked, tt.out, tt.errs)
		}
	}
}

// Whoever interrupts it is told what goes on: a command of the operator's own does.
func TestSwitchoverAborted(t *testing.T) {
	for runsOn, want := range map[string]string{
		"the command /bin/x": "the command /bin/x goes on until it ends, or its time is up (switchover.timeout)",
		"":                   "what the authority was asked for it may still do",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewEncoder(w).Encode(switchover.Event{Text: "it decides", RunsOn: runsOn}); err != nil {
				t.Error(err)
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-r.Context().Done()
		}))
		ctx, interrupt := context.WithCancel(t.Context())
		c := switchoverCmd{Cluster: "main", asked: asked{running: running{Address: strings.TrimPrefix(srv.URL, "http://")}}}
		err := c.Run(ctx, streams{out: writerFunc(interrupt), err: io.Discard}) // once it has printed a line
		if err == nil || !strings.Contains(err.Error(), "aborted: the agent resumes what was paused") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", runsOn, err)
		}
		srv.Close()
	}
}

// writerFunc is called at each write.
type writerFunc func()

func (f writerFunc) Write(b []byte) (int, error) { f(); return len(b), nil }
