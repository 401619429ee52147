package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// node is a server with one session, which ends when it is told to.
type node struct {
	mu    sync.Mutex // guards everything below
	ended bool
	slow  time.Duration // how long a login takes
	weak  bool          // the role may end nobody
	hold  chan struct{} // not nil: logins wait for it
	off   bool          // ending sessions is not set up
}

func (n *node) setup() drain.Setup {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off {
		return drain.Setup{}
	}
	return drain.Setup{
		Own: func(string) []string { return nil },
		Login: func(context.Context, string, topology.Node) (drain.Session, error) {
			n.mu.Lock()
			hold, slow := n.hold, n.slow
			n.mu.Unlock()
			time.Sleep(slow)
			if hold != nil {
				<-hold
			}
			return n, nil
		},
	}
}

func (n *node) Ask(_ context.Context, sql string, _ ...string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case sql == drain.RightsQuery:
		return fmt.Sprintf(`{"user":"x","signal":%t,"stats":true}`, !n.weak), nil
	case strings.Contains(sql, "pg_terminate_backend"):
		n.ended = true
		return `{"same":true,"told":[17]}`, nil
	case strings.Contains(sql, "pg_postmaster_start_time"):
		return "1 5432 ", nil
	case n.ended:
		return `[]`, nil
	}
	return `[{"pid":17,"started_us":1,"user":"app","state":"active","transaction":true}]`, nil
}

func (n *node) Probe() (topology.Probe, error) {
	return topology.Probe{SystemID: 7, InRecovery: topology.Yes, Timeline: 1}, nil
}

func (n *node) Close() {}

// drainRig is a server with drains, on the clock of a bubble.
type drainRig struct {
	*Server
	t    *testing.T
	node *node
	book *maintenance.Book
}

func newDrainRig(t *testing.T) *drainRig {
	t.Helper()
	r := &drainRig{t: t, node: new(node)}
	var runner *drain.Runner
	dir := t.TempDir()
	r.book = maintenance.Open(maintenance.Options{
		Path: filepath.Join(dir, "maintenance.json"), Read: os.ReadFile, Now: time.Now, Changed: func() { runner.Wake() },
	})
	r.book.Share(nil)
	n2 := topology.Node{Name: "n2", Address: topology.Address{Host: "192.0.2.2", Port: 5432}}
	runner = drain.Open(drain.Options{
		Path: filepath.Join(dir, "drains.json"), Read: os.ReadFile, Now: time.Now, By: "here", Records: r.book.Set, Setup: r.node.setup,
		Judged: func(string, string) (drain.Judged, error) {
			return drain.Judged{Node: n2, Cluster: "main", SystemID: 7, InRecovery: topology.Yes, Timeline: 1}, nil
		},
	})
	ticker := topology.NewTicker(time.Now)
	views := new(latest.Map[string, topology.View])
	views.Set("main", &topology.View{Snapshot: &topology.Snapshot{Complete: true, Nodes: []topology.Node{n2}}, ValidUntil: ticker().Mono.Add(time.Hour)})
	r.Server = New(Options{
		Book: r.book, Drains: runner, Views: views, Now: ticker,
		Clusters: func() []string { return []string{"main"} }, Policy: func(string) topology.Policy { return topology.DefaultPolicy() },
		Tokens: func() Tokens { return Tokens{Admins: parsed(t, "ann admin-0123456789")} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { runner.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

func (r *drainRig) ask(method, path, body string) (int, string) {
	req := httptest.NewRequest(method, "/admin/maintenance/"+path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer admin-0123456789")
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func (r *drainRig) phase() (drain.Report, State) {
	r.t.Helper()
	var s State
	if code, text := r.ask("GET", "main/n2", ""); code != 200 || json.Unmarshal([]byte(text), &s) != nil {
		r.t.Fatalf("%d %s", code, text)
	}
	if s.Drain == nil {
		return drain.Report{}, s
	}
	return *s.Drain, s
}

// A drain over HTTP: what cannot be is refused and nothing has begun; then the report
// tells how far it is, and the balancers are told to keep their sessions.
func TestDrainOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newDrainRig(t)
		for body, want := range map[string]int{
			`{"terminate":true}`: 400, `{"end_idle":true}`: 400, `{"drain":"1m","for":"1m","terminate":true}`: 400,
			`{"drain":"1m","terminate":true,"pool":"x"}`: 400,
		} {
			if code, text := r.ask("POST", "main/n2", body); code != want {
				t.Errorf("%s: %d %s, want %d", body, code, text, want)
			}
		}
		r.node.off = true
		for _, path := range []string{"main/n2", "main", "main/n2?pool=replica"} {
			code, text := r.ask("POST", path, `{"drain":"1m","terminate":true}`)
			if code != 409 || !strings.Contains(text, "could not be drained") || !strings.Contains(text, "Nothing was changed") {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
		if rep, s := r.phase(); s.Enabled || rep.ID != "" {
			t.Errorf("after refusals: %+v", s)
		}
		r.node.off = false
		begin := time.Now()
		if code, text := r.ask("POST", "main/n2", `{"drain":"1m","for":"2m","terminate":true}`); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		for _, step := range []struct {
			at          time.Duration
			want        drain.Phase
			left, ended int
		}{{time.Second, drain.Settling, 0, 0}, {3 * time.Second, drain.Waiting, 1, 0}, {59 * time.Second, drain.Waiting, 1, 0}, {61 * time.Second, drain.Done, 0, 1}} {
			time.Sleep(step.at - time.Since(begin))
			synctest.Wait()
			if rep, _ := r.phase(); rep.Phase != step.want || len(rep.Left) != step.left || len(rep.Ended) != step.ended {
				t.Errorf("after %s: %+v, want %+v", step.at, rep, step)
			}
		}
		rep, s := r.phase()
		if at := s.Record.Sessions.Deadline; !s.Record.DrainUntil.IsZero() || !at.Equal(begin.Add(time.Minute)) || s.Record.Sessions.ID != rep.ID || s.Record.Sessions.By != "here" {
			t.Errorf("the record is %+v", s.Record)
		}
		if m := r.book.Set().Of("main"); len(m.Records) != 1 || !m.Records[0].DrainUntil.IsZero() {
			t.Errorf("balancers are told %+v", m)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if rep, s := r.phase(); s.Enabled || rep.Phase != drain.Done {
			t.Errorf("after the maintenance %+v", s)
		}
	})
}

// Balancers have their time from the moment in which the record holds, by this agent's
// clock: neither a slow login before it takes any of that, nor the clock of the agent
// that took the node out, be it ahead or behind, gives or takes any.
func TestBalancersHaveTheirTime(t *testing.T) {
	for name, from := range map[string]time.Duration{"slow login": 0, "clock ahead": time.Hour, "clock behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newDrainRig(t)
				r.node.slow = 2500 * time.Millisecond
				if from != 0 {
					n2 := maintenance.Target{Cluster: "main", Node: "n2"}
					err := r.book.Change(t.Context(), n2, func(s maintenance.Set) (maintenance.Set, bool) {
						next, _, changed := s.Start(maintenance.Record{Target: n2}, time.Now().Add(from))
						return next, changed
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				if code, text := r.ask("POST", "main/n2", `{"drain":"1h","end_idle":true}`); code != 200 {
					t.Fatalf("%d %s", code, text)
				}
				r.node.mu.Lock()
				r.node.slow = 0
				r.node.mu.Unlock()
				for _, want := range []drain.Phase{drain.Settling, drain.Waiting} {
					time.Sleep(1900 * time.Millisecond)
					synctest.Wait()
					if rep, _ := r.phase(); rep.Phase != want {
						t.Errorf("it is %s, want %s", rep.Phase, want)
					}
				}
			})
		})
	}
}

// A drain that ends nobody needs no right to, and no word about whom to end beside it;
// balancers keep their sessions, and who is left at the deadline is reported.
func TestDrainThatKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newDrainRig(t)
		r.node.weak = true
		for body, want := range map[string]struct {
			code int
			text string
		}{
			`{"keep":true}`: {400, "end_idle, terminate and keep need drain"},
			`{"drain":"1m","keep":true,"end_idle":true}`:  {400, "keep ends nobody"},
			`{"drain":"1m","keep":true,"terminate":true}`: {400, "keep ends nobody"},
			`{"drain":"1m","for":"1m","keep":true}`:       {400, "drain must be shorter than for"},
			`{"drain":"1m","terminate":true}`:             {409, "may not end other sessions"},
		} {
			if code, text := r.ask("POST", "main/n2", body); code != want.code || !strings.Contains(text, want.text) {
				t.Errorf("%s: %d %s, want %+v", body, code, text, want)
			}
		}
		if code, text := r.ask("POST", "main/n2", `{"drain":"1m","keep":true}`); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		for _, want := range []drain.Phase{drain.Waiting, drain.Left} {
			time.Sleep(59 * time.Second)
			synctest.Wait()
			rep, s := r.phase()
			if rep.Phase != want || len(rep.Left) != 1 || rep.Left[0].PID != 17 || len(rep.Ended) != 0 || r.node.ended {
				t.Errorf("%+v, want %s", rep, want)
			}
			if s.Record.Sessions.ID != rep.ID || s.Record.Sessions.Ends() || !s.Record.DrainUntil.IsZero() {
				t.Errorf("the record is %+v", s.Record)
			}
		}
	})
}

// DELETE answers when nobody is ended any more, and not before.
func TestStopWaitsForTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newDrainRig(t)
		if code, text := r.ask("POST", "main/n2", `{"drain":"10s","terminate":true}`); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		time.Sleep(3 * time.Second)
		hold := make(chan struct{})
		r.node.mu.Lock()
		r.node.hold = hold
		r.node.mu.Unlock()
		time.Sleep(3 * time.Second)
		answered := make(chan int, 1)
		go func() {
			code, _ := r.ask("DELETE", "main/n2", "")
			answered <- code
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case code := <-answered:
			t.Errorf("answered %d while the server was being asked", code)
		default:
		}
		close(hold)
		if code := <-answered; code != 200 {
			t.Errorf("answered %d", code)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if rep, s := r.phase(); rep.Phase != drain.Stopped || r.node.ended || s.Enabled {
			t.Errorf("%+v", s)
		}
	})
}
