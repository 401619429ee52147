package switchover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is cluster main with the writer n1, and replicas n2 and n3. It writes down what
// is done, in order.
type rig struct {
	t     *testing.T
	views latest.Map[string, topology.View]
	*Runner

	mu   sync.Mutex // guards everything below
	done []string
	// ask is what the authority does, hold and settled what those wait for.
	ask     func(ctx context.Context, from, to string) error
	hold    func(ctx context.Context) error
	settled func(ctx context.Context) error
	ready   error
	// command and needsTo say what the authority is.
	command, needsTo bool
	early            []Early
	held             []string // beside edge/app
	log              logtest.Log
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	nothing := func(context.Context) error { return nil }
	r.hold, r.settled = nothing, nothing
	r.ask = func(context.Context, string, string) error { return nil }
	r.Runner = New(Options{
		Views: &r.views, Now: topology.NewTicker(time.Now), Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
		Known: func(cluster string) error {
			if cluster != "main" {
				return errors.New("no such cluster: `" + cluster + "` is none of `main`")
			}
			return nil
		},
		Authority: func(string) (Authority, error) {
			return Authority{Name: "it", RunsOn: r.command, NeedsTo: r.needsTo, Switch: func(ctx context.Context, from, to string) error {
				r.note("ask " + from + ">" + to)
				return r.ask(ctx, from, to)
			}}, nil
		},
		Limits: func(string) (time.Duration, time.Duration) { return 10 * time.Second, time.Minute },
		Hold: func(ctx context.Context, cluster string) (Held, error) {
			if err := r.hold(ctx); err != nil {
				return Held{}, err
			}
			r.note("hold")
			return Held{Paused: append([]string{"edge/app"}, r.held...), Early: func() []Early { return r.early }, Open: func(context.Context) error { r.note("open"); return nil }, Release: func(_ context.Context, writer string) error {
				r.note("release " + writer)
				return nil
			}}, nil
		},
		Ready: func(string) error { return r.ready },
		Settled: func(ctx context.Context, _ string, generation uint64) error {
			r.note(fmt.Sprint("settle ", generation))
			return r.settled(ctx)
		},
	})
	r.writer("n1", 1)
	return r
}

func (r *rig) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, what)
}

func (r *rig) want(done ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.done, done) {
		r.t.Errorf("done was %q, want %q", r.done, done)
	}
	r.done = nil
}

// writer publishes a decision.
func (r *rig) writer(name string, generation uint64) *topology.View {
	s := &topology.Snapshot{Cluster: "main", Writer: name, Generation: generation}
	p := topology.PoolVerdicts{Pool: "replica", Mode: topology.ModeRead}
	facts := &topology.Facts{Nodes: make(map[string]topology.NodeFacts), Authority: &topology.Authority{}}
	for _, n := range []string{"n1", "n2", "n3"} {
		s.Nodes = append(s.Nodes, topology.Node{Name: n})
		v := topology.NodeVerdict{Node: n, Verdict: topology.Up, Reasons: []topology.Reason{{Code: topology.CodeReplica, Text: "replica"}}}
		if n == name {
			v.Verdict = topology.Down
		}
		p.Nodes = append(p.Nodes, v)
		facts.Authority.Members = append(facts.Authority.Members, topology.Member{Name: n})
	}
	s.Pools = []topology.PoolVerdicts{p}
	v := &topology.View{Snapshot: s, Facts: facts, ValidUntil: 1 << 62}
	r.views.Set("main", v)
	return v
}

// run plans and runs; what is told is in texts.
func (r *rig) run(ctx context.Context, q Request) (res Result, texts []string) {
	r.t.Helper()
	q.Cluster = "main"
	p, err := r.Plan(q)
	if err != nil {
		r.t.Fatal(err)
	}
	return p.Run(ctx, func(e Event) { texts = append(texts, e.Text) }), texts
}

// The order of a switchover that goes well: hold, ask, and once the new writer is
// decided, settled and open, release.
func TestSwitchover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.ask = func(context.Context, string, string) error {
			time.Sleep(time.Second)
			r.writer("", 2)
			time.Sleep(time.Second)
			r.writer("n2", 3)
			return nil
		}
		res, texts := r.run(t.Context(), Request{To: "n2"})
		r.want("hold", "ask n1>n2", "settle 3", "open", "release n2")
		if res.Error != "" || res.Writer != "n2" || res.From != "n1" || res.HeldFor != 2 || res.WriterFor != 2 || res.LimitReached {
			t.Errorf("%+v", res)
		}
		if all := strings.Join(texts, "\n"); !strings.Contains(all, "it is asked to switch over from n1 to n2; it decides") || !strings.Contains(all, "resumed after 2s: edge/app") {
			t.Errorf("told was:\n%s", all)
		}
		r.ask = func(context.Context, string, string) error { r.writer("n3", 4); return nil }
		if res, _ = r.run(t.Context(), Request{To: "n1"}); !strings.Contains(res.Error, "chose n3 instead of n1") || res.Writer != "n3" {
			t.Errorf("%+v", res)
		}
	})
}

// Whatever goes wrong, what is held is released: at once when the authority refuses or
// the caller goes away, at the limit when it hangs. Nobody is asked when clients do not
// come to rest.
func TestEverythingIsReleased(t *testing.T) {
	hangs := func(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name   string
		set    func(*rig)
		abort  time.Duration
		want   []string
		within time.Duration
		err    string
	}{
		{"refused", func(r *rig) {
			r.ask = func(context.Context, string, string) error { time.Sleep(time.Second); return errors.New("no") }
		}, 0, []string{"hold", "ask n1>n2", "release "}, time.Second, "it did not switch over: no"},
		{"aborted", func(r *rig) { r.ask = hangs }, 3 * time.Second, []string{"hold", "ask n1>n2", "release "}, 3 * time.Second, "aborted"},
		{"hangs", func(r *rig) { r.ask = hangs }, 0, []string{"hold", "ask n1>n2", "release "}, time.Minute, "no new writer after 1m0s"},
		{"no rest", func(r *rig) { r.hold = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } }, 0, nil, 10 * time.Second, "the authority was not asked"},
		{"a balancer that does not obey", func(r *rig) {
			r.ask = func(context.Context, string, string) error { r.writer("n2", 2); return nil }
			r.settled = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}, 0, []string{"hold", "ask n1>n2", "settle 2", "release n2"}, 10 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				tt.set(r)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.abort > 0 {
					time.AfterFunc(tt.abort, cancel)
				}
				begin := time.Now()
				res, _ := r.run(ctx, Request{To: "n2"})
				if d := time.Since(begin); d != tt.within {
					t.Errorf("it took %s, want %s", d, tt.within)
				}
				if !strings.Contains(res.Error, tt.err) || (res.Error == "") != (tt.err == "") {
					t.Errorf("the error is %q", res.Error)
				}
				if res.HeldFor > 10 {
					t.Errorf("clients were held for %v s", res.HeldFor)
				}
				r.want(tt.want...)
				if _, err := r.Plan(Request{Cluster: "main", To: "n3"}); err != nil {
					t.Errorf("afterwards none may begin: %v", err)
				}
			})
		})
	}
}

// At the limit everything is resumed, and a writer that comes later is told of.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.ask = func(context.Context, string, string) error {
			time.Sleep(20 * time.Second)
			r.writer("n2", 2)
			return nil
		}
		res, texts := r.run(t.Context(), Request{To: "n2", Limit: "5s"})
		r.want("hold", "ask n1>n2", "release ", "settle 2")
		if res.Error != "" || !res.LimitReached || res.HeldFor != 5 || res.WriterFor != 20 || res.Writer != "n2" {
			t.Errorf("%+v", res)
		}
		if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "limit of 5s is reached") }) {
			t.Errorf("told was %q", texts)
		}
	})
}

// Who should not take over is refused with all reasons, and asked for by force; what no
// force can do is refused all the same.
func TestRefusals(t *testing.T) {
	reason := func(code topology.Code, v topology.Verdict) func(*rig) {
		return func(r *rig) {
			n := &r.writer("n1", 1).Snapshot.Pools[0].Nodes[1]
			n.Verdict, n.Reasons = v, []topology.Reason{{Code: code, Text: "because"}}
		}
	}
	for _, tt := range []struct {
		name   string
		set    func(*rig)
		q      Request
		why    string
		forced bool // force helps
	}{
		{"the writer", nil, Request{To: "n1"}, "n1 is the writer already; nothing", false},
		{"nobody", nil, Request{To: "n9"}, "there is no node n9 in cluster main; there are: n2, n3 (n1 is the writer); nothing", false},
		{"no cluster", nil, Request{Cluster: "man", To: "n2"}, "no such cluster: `man` is none of `main`", false},
		{"no candidate for a command", func(r *rig) { r.command, r.needsTo = true, true }, Request{}, "it of cluster main needs a candidate ({{.To}} in switchover.command): name it with --to, one of n2, n3", false},
		{"in maintenance", reason(topology.CodeMaintenance, topology.Drain), Request{To: "n2"}, "from n1 to n2 is not asked for: n2 is in maintenance (because): `pgsteer maintenance list` shows by whom, and `pgsteer maintenance stop main/n2` puts it back", true},
		{"in maintenance by the monitor", func(r *rig) {
			n := &r.writer("n1", 1).Snapshot.Pools[0].Nodes[1]
			n.Verdict, n.Reasons = topology.Drain, []topology.Reason{{Code: topology.CodeMaintenance, Text: "the monitor's goal is maintenance"}}
		}, Request{To: "n2"}, "which `pg_autoctl disable maintenance` ends", true},
		{"a writer in maintenance", func(r *rig) {
			v := r.writer("", 1)
			p := topology.PoolVerdicts{Pool: "primary", Mode: topology.ModeWrite}
			for _, n := range []string{"n1", "n2"} { // all are out; n1 alone is no replica
				p.Nodes = append(p.Nodes, topology.NodeVerdict{Node: n, Verdict: topology.Drain, Reasons: []topology.Reason{{Code: topology.CodeMaintenance, Text: "disk of " + n}}})
				v.Facts.Nodes[n] = topology.NodeFacts{InRecovery: map[bool]topology.Tri{true: topology.No, false: topology.Yes}[n == "n1"]}
			}
			v.Snapshot.Pools = append(v.Snapshot.Pools, p)
		}, Request{To: "n2"}, "no writer at this moment, so there is nothing to switch over from: n1 is in maintenance (disk of n1): `pgsteer maintenance list` shows by whom, and `pgsteer maintenance stop main/n1`", false},
		{"down", reason(topology.CodeRefused, topology.Down), Request{To: "n2"}, "n2 is up in no pool: replica (because). Nothing was done; with --force", true},
		{"lag", reason(topology.CodeLag, topology.Drain), Request{To: "n2"}, "n2 in pool replica: because", true},
		{"serves although it lags", reason(topology.CodeLagOverride, topology.Up), Request{To: "n2"}, "n2 in pool replica: because", true},
		{"delayed", reason(topology.CodeDelayed, topology.Down), Request{To: "n2"}, "n2 in pool replica: because", true},
		{"delayed but up", func(r *rig) {
			v := r.writer("n1", 1)
			v.Facts.Nodes["n2"] = topology.NodeFacts{Probe: &topology.Probe{ApplyDelay: time.Hour}}
		}, Request{To: "n2"}, "delays its replay by 1h", true},
		{"nofailover", func(r *rig) { r.writer("n1", 1).Snapshot.Nodes[1].Tags = map[string]string{"nofailover": "true"} }, Request{To: "n2"}, "tagged nofailover", true},
		{"nofailover by the authority", func(r *rig) {
			r.writer("n1", 1).Facts.Authority.Members[1].Tags = map[string]string{"nofailover": "true"}
		}, Request{To: "n2"}, "tagged nofailover", true},
		{"not ready", func(r *rig) { r.ready = errors.New("template edge is pending") }, Request{}, "template edge is pending", true},
		{"no writer", func(r *rig) { r.writer("", 1) }, Request{To: "n2"}, "no writer at this moment", false},
		{"too old", func(r *rig) { r.writer("n1", 1).ValidUntil = 0 }, Request{To: "n2"}, "no writer at this moment", false},
		{"limit", nil, Request{To: "n2", Limit: "2m"}, "--limit 2m is no time", false},
		{"no limit", nil, Request{To: "n2", Limit: "0s"}, "--limit 0s is no time", false},
	} {
		r := newRig(t)
		if tt.set != nil {
			tt.set(r)
		}
		tt.q.Cluster = cmp.Or(tt.q.Cluster, "main")
		var no *Refusal
		if _, err := r.Plan(tt.q); !errors.As(err, &no) || !strings.Contains(err.Error(), tt.why) || !strings.Contains(err.Error(), "othing was done") {
			t.Errorf("%s: %v", tt.name, err)
		}
		tt.q.Force = true
		p, err := r.Plan(tt.q)
		if (err == nil) != tt.forced {
			t.Errorf("%s, by force: %v", tt.name, err)
		}
		if err == nil {
			if _, err := r.Plan(tt.q); err == nil || !strings.Contains(err.Error(), "under way") {
				t.Errorf("%s: a second one beside it: %v", tt.name, err)
			}
			p.Drop()
		}
		r.want()
	}
}

// What others have ended early is told with its own time, and the rest with the
// release's.
func TestHeldUntilOthersEndedIt(t *testing.T) {
	for _, tt := range []struct {
		name  string
		early []string
		held  float64
		want  []string
	}{
		{"all", []string{"edge/app"}, 2, []string{"edge/app was held for 2s at most: an operator"}},
		{"another", []string{"edge/jobs"}, 5, []string{"edge/jobs was held for 2s at most: an operator", "resumed after 5s: edge/app"}},
		{"none", nil, 5, []string{"resumed after 5s: edge/app"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			begin := r.o.Now().Mono
			for _, name := range tt.early {
				if name != "edge/app" {
					r.held = append(r.held, name)
				}
				r.early = append(r.early, Early{Database: name, By: "an operator", At: begin + topology.Mono(2*time.Second)})
			}
			r.ask = func(context.Context, string, string) error {
				<-time.After(5 * time.Second)
				r.writer("n2", 2)
				return nil
			}
			p, err := r.Plan(Request{Cluster: "main", To: "n2"})
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			res := p.Run(t.Context(), func(e Event) { told = append(told, e.Text) })
			told = slices.DeleteFunc(told, func(s string) bool { return !strings.Contains(s, "held for") && !strings.Contains(s, "resumed after") })
			if res.Error != "" || res.HeldFor != tt.held || !slices.Equal(told, tt.want) {
				t.Errorf("%s: %+v, told %q", tt.name, res, told)
			}
		})
	}
}

// Over HTTP: a refusal is 409, else there is a line for each step and the result last.
func TestServe(t *testing.T) {
	r := newRig(t)
	r.ask = func(context.Context, string, string) error { r.writer("n2", 2); return nil }
	mux := http.NewServeMux()
	mux.HandleFunc("POST /admin/switchover/{cluster}", func(w http.ResponseWriter, req *http.Request) { r.Serve(w, req, "token", "ann", "from", "192.0.2.1") })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	ask := func(body string) (code int, lines []string) {
		res, err := srv.Client().Post(srv.URL+"/admin/switchover/main", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		for d := json.NewDecoder(res.Body); ; {
			var line json.RawMessage
			if d.Decode(&line) != nil {
				return res.StatusCode, lines
			}
			lines = append(lines, string(line))
		}
	}
	for body, want := range map[string]int{`{"to":"n1"}`: 409, `{"too":"n2"}`: 400, `nonsense`: 400} {
		audited := r.log.Count("token=ann from=192.0.2.1 audit=refused why=")
		if code, lines := ask(body); code != want || len(lines) != 1 || r.log.Count("token=ann from=192.0.2.1 audit=refused why=") != audited+1 || !strings.Contains(lines[0], "nothing was done") && !strings.Contains(lines[0], "Nothing was done") {
			t.Errorf("%s: %d %q", body, code, lines)
		}
	}
	code, lines := ask(`{"to":"n2"}`)
	if code != 200 || len(lines) < 4 || !strings.Contains(lines[len(lines)-1], `"writer":"n2"`) {
		t.Errorf("%d %q", code, lines)
	}
	r.command, r.ask = true, func(context.Context, string, string) error { return errors.New("no") }
	if code, lines := ask(`{"to":"n1"}`); code != 200 {
		t.Errorf("%d %q", code, lines)
	}
	// A host is from, and a node never is.
	for _, want := range []string{
		"to=n2 force=false token=ann from=192.0.2.1 audit=start writer=n1 ", "to=n2 force=false token=ann from=192.0.2.1 audit=end was=n1 writer=n2 ",
		`to=n1 force=false token=ann from=192.0.2.1 audit="command failed" was=n2 `,
	} {
		if r.log.Count("target=main cluster=main "+want) != 1 {
			t.Errorf("the log has not once %s:\n%s", want, r.log.String())
		}
	}
	if strings.Contains(r.log.String(), "from=n") {
		t.Errorf("the log:\n%s", r.log.String())
	}
}
