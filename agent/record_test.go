package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/record"
	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// recording is a reader of a cluster's stream.
type recording struct {
	r       *rig
	cluster string
	stop    context.CancelFunc
	done    chan *record.Session
	seen    logtest.Log // the stream itself
}

// record begins to record; when it returns, the first decision was read.
func (r *rig) record(cluster string) *recording {
	r.t.Helper()
	ctx, stop := contextFor(r.t)
	r.t.Cleanup(stop)
	res := r.stream(ctx, cluster) //nolint:bodyclose // the goroutine below closes it
	if res.StatusCode != http.StatusOK {
		r.t.Fatalf("the stream is answered %s", res.Status)
	}
	rec := &recording{r: r, cluster: cluster, stop: stop, done: make(chan *record.Session, 1)}
	go func() {
		defer func() { _ = res.Body.Close() }()
		s, err := record.Read(ctx, io.TeeReader(res.Body, &rec.seen), nil)
		if err != nil {
			r.t.Error(err)
		}
		rec.done <- s
	}()
	rec.upTo(0)
	return rec
}

func (r *rig) stream(ctx context.Context, cluster string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr(partStatus)+tap.Path+cluster, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

var decidedAt = regexp.MustCompile(`"decision":\{"at":\{"Mono":(\d+).*\n`)

// upTo waits until a decision of that moment, or a later one, was read.
func (r *recording) upTo(at topology.Mono) {
	r.r.t.Helper()
	r.r.until("a decision in the stream", func() bool {
		all := decidedAt.FindAllStringSubmatch(r.seen.String(), -1)
		if len(all) == 0 {
			return false
		}
		last, err := strconv.ParseInt(all[len(all)-1][1], 10, 64)
		return err == nil && topology.Mono(last) >= at
	})
}

// end stops the recording after it has what can be seen now.
func (r *recording) end() *record.Session {
	r.r.t.Helper()
	r.upTo(r.r.view(r.cluster).Facts.At.Mono)
	r.stop()
	return r.wait()
}

// wait waits for the end.
func (r *recording) wait() *record.Session {
	r.r.t.Helper()
	s := <-r.done
	if s == nil {
		r.r.t.Fatal("nothing was recorded")
	}
	return s
}

// replay plays what was recorded.
func replay(t *testing.T, s *record.Session) (text string, result *simulate.Result) {
	t.Helper()
	var b bytes.Buffer
	if err := s.Encode(&b); err != nil {
		t.Fatal(err)
	}
	scenario, err := simulate.Parse("record.yaml", b.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, &b)
	}
	if result, err = scenario.Run(); err != nil {
		t.Fatal(err)
	}
	if result.Expectations == 0 || len(result.Failures) > 0 {
		t.Errorf("the replay differs: %v\n%s", result.Failures, &b)
	}
	return b.String(), result
}

// promoted is a primary on a timeline, followed a replica on it.
func promoted(tl topology.Timeline) topology.Probe {
	p := primary
	p.Timeline = tl
	return p
}

func following(tl topology.Timeline) topology.Probe {
	p := replica
	p.Timeline, p.Receiver.Timeline = tl, tl
	return p
}

// secret is the password that the nodes want.
const secret = "correct-horse"

// failover is a cluster acme of the nodes pgdb-a and pgdb-b in an agent, and how
// its primary dies and comes back as a replica.
type failover struct {
	r    *rig
	a, b *node
	// lead makes the authority name a node; nobody with "".
	lead func(node string)
}

// begin starts the agent on a healthy cluster.
func newFailover(t *testing.T, patroni bool) *failover {
	t.Helper()
	f := &failover{r: newRig(t), a: newNode(t, promoted(1)), b: newNode(t, following(1)), lead: func(string) {}}
	for _, n := range []*node{f.a, f.b} {
		n.Set(func(s *pgState) { s.Password = secret })
	}
	f.b.addr = strings.Replace(f.b.addr, "127.0.0.1", "localhost", 1)
	cluster := fmt.Sprintf("  acme:\n    nodes: {pgdb-a: %q, pgdb-b: %q}\n", f.a.addr, f.b.addr)
	f.r.file("pw", secret+"\n")
	config := "state_dir: state\npostgres: {user: probe, password_file: pw, sslmode: disable, login_every: 1s}\n"
	if patroni {
		store := consultest.New()
		server := httptest.NewServer(store)
		t.Cleanup(server.Close)
		t.Cleanup(store.Stop)
		cluster = "  acme: {authority: patroni}\n"
		config += "consul: {address: " + server.URL + "}\n"
		f.lead = f.patroni(store)
		f.lead("pgdb-a")
	}
	f.r.write(config, listen(), "clusters:\n", cluster)
	f.r.up()
	f.r.settled("acme", "pgdb-a", "pgdb-b")
	return f
}

// patroni writes Patroni's keys.
func (f *failover) patroni(store *consultest.Agent) func(string) {
	const prefix = "service/acme/"
	store.Put(prefix+"config", `{"ttl":30,"loop_wait":10,"retry_timeout":10}`, prefix+"initialize", "7")
	return func(leader string) {
		store.Delete(prefix + "leader")
		for name, n := range map[string]*node{"pgdb-a": f.a, "pgdb-b": f.b} {
			role := "replica"
			if name == leader {
				role = "primary"
			}
			value := fmt.Sprintf(`{"role":%q,"state":"running","conn_url":"postgres://someone:%s@%s/postgres","api_url":"http://someone:%s@127.0.0.1:8008/patroni"}`,
				role, secret, n.addr, secret)
			store.Acquire(prefix+"members/"+name, value, "5e551011-0000-4000-8000-00000000000"+name[5:])
		}
		if leader != "" {
			store.Acquire(prefix+"leader", leader, "5e551011-0000-4000-8000-00000000000"+leader[5:])
		}
	}
}

// happen kills the primary, lets the replica take over, and brings the other back.
func (f *failover) happen() {
	f.a.Set(func(s *pgState) { s.LoginError = "57P03" })
	f.a.Kill("57P01")
	f.lead("")
	f.r.until("the writer to be gone", func() bool {
		p, _ := f.r.view("acme").Snapshot.Pool("primary")
		return len(p.Up()) == 0
	})
	f.b.Set(func(s *pgState) { s.Probe = promoted(2) })
	f.lead("pgdb-b")
	f.r.writer("acme", "pgdb-b")
	f.a.Set(func(s *pgState) { s.LoginError, s.Probe = "", following(2) })
	f.r.settled("acme", "pgdb-b", "pgdb-a")
}

func TestAFailoverIsRecordedAndReplayed(t *testing.T) {
	for _, tt := range []struct {
		name          string
		patroni, mask bool
		from, to      string
	}{
		{"without authority", false, false, "pgdb-a", "pgdb-b"},
		{"without authority, masked", false, true, "n1", "n2"},
		{"with Patroni", true, false, "pgdb-a", "pgdb-b"},
		{"with Patroni, masked", true, true, "n1", "n2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFailover(t, tt.patroni)
			rec := f.r.record("acme")
			f.happen()
			s := rec.end()
			if s.Lost > 0 || s.Ended != "" || s.Observations() == 0 {
				t.Errorf("%d lost, ended %q, %d observations", s.Lost, s.Ended, s.Observations())
			}
			if tt.mask {
				if err := s.Mask(); err != nil {
					t.Fatal(err)
				}
			}
			text, result := replay(t, s)
			if !switched(result, tt.from, tt.to) {
				t.Errorf("the replay shows no switch from %s to %s: %+v", tt.from, tt.to, result.Events)
			}
			hidden := []string{secret}
			if tt.mask {
				hidden = append(hidden, "acme", "pgdb", "probe", "localhost", "127.0.0.1", "5e551011")
			}
			for _, word := range hidden {
				if at := regexp.MustCompile(".*" + regexp.QuoteMeta(word) + ".*").FindString(text); at != "" && !strings.Contains(at, "probe:") {
					t.Errorf("the scenario shows %q: %s", word, at)
				}
			}
		})
	}
}

// switched: both were up in the write pool, one after the other.
func switched(r *simulate.Result, from, to string) bool {
	first := false
	for _, e := range r.Events {
		up := e.Pool == "primary" && e.Verdict != nil && *e.Verdict == topology.Up
		first = first || up && e.Node == from
		if up && e.Node == to {
			return first
		}
	}
	return false
}

// Whatever happens at the moment, a recording that begins then comes to the
// agent's decision too.
func TestARecordingBeginsInTheMiddle(t *testing.T) {
	for _, tt := range []struct {
		name    string
		patroni bool
		before  func(*failover)
	}{
		{"nothing happens", false, func(*failover) {}},
		{"nothing happens with Patroni", true, func(*failover) {}},
		{"a silent replica", true, func(f *failover) {
			f.b.Set(func(s *pgState) { s.HangLogin, s.HangQuery = true, true })
			f.verdict("replica", "pgdb-b", topology.Drain)
		}},
		{"after a failover", false, (*failover).happen},
		{"after a failover with Patroni", true, (*failover).happen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFailover(t, tt.patroni)
			tt.before(f)
			at := f.r.view("acme").Facts.At.Mono
			f.r.until("the next decision", func() bool { return f.r.view("acme").Facts.At.Mono > at })
			replay(t, f.r.record("acme").end())
		})
	}
}

// What is remembered beside the newest observations is missing in a recording
// that begins in the middle, and the check says so.
func TestARecordingThatBeginsTooLate(t *testing.T) {
	f := newFailover(t, true)
	f.lead("")
	f.verdict("primary", "pgdb-a", topology.Drain)
	var b bytes.Buffer
	if err := f.r.record("acme").end().Encode(&b); err != nil {
		t.Fatal(err)
	}
	if n, err := record.Check(b.Bytes()); err != nil || n == 0 {
		t.Errorf("%d expectations fail, %v; the holder's past is not known, so one should", n, err)
	}
}

func (f *failover) verdict(pool, node string, want topology.Verdict) {
	f.r.until(node+" to be "+want.String(), func() bool {
		p, _ := f.r.view("acme").Snapshot.Pool(pool)
		v, _ := p.Verdict(node)
		return v.Verdict == want
	})
}

func TestARecordingEndsWithWhatItIsOf(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*rig, func(...string))
		want   string
	}{
		{"another policy", func(r *rig, write func(...string)) {
			write("    policy: {silent_after: 3s}\n")
		}, "its configuration was reloaded"},
		{"other sources", func(r *rig, write func(...string)) {
			write("    postgres: {interval: 900ms}\n")
		}, "the agent stops watching the cluster"},
		{"the agent ends", func(r *rig, _ func(...string)) { r.down() }, "the agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n1, n2 := newNode(t, primary), newNode(t, replica)
			r := newRig(t)
			write := func(more ...string) {
				r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2, more...))
			}
			write()
			r.up()
			r.settled("main", "n1", "n2")
			rec := r.record("main")
			if err := r.reload(); err != nil { // nothing has changed
				t.Fatal(err)
			}
			select {
			case s := <-rec.done:
				t.Fatalf("a reload that changes nothing ended it: %+v", s)
			default:
			}
			tt.change(r, write)
			if r.stop != nil {
				if err := r.reload(); err != nil {
					t.Fatal(err)
				}
			}
			s := rec.wait()
			if !strings.Contains(s.Ended, tt.want) {
				t.Errorf("ended by %q, want %q", s.Ended, tt.want)
			}
			text, _ := replay(t, s)
			if !strings.Contains(text, "It ended early: ") {
				t.Errorf("the scenario does not say so:\n%s", text)
			}
		})
	}
}

func TestWhatCannotBeRecorded(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	if code, body := r.get(partStatus, tap.Path+"nope"); code != http.StatusNotFound || !strings.Contains(body, "there is no cluster nope; known are: main") {
		t.Errorf("%d %s", code, body)
	}
	var all []*recording
	for range 4 {
		all = append(all, r.record("main"))
	}
	if code, body := r.get(partStatus, tap.Path+"main"); code != http.StatusServiceUnavailable || !strings.Contains(body, "4 are recording already") {
		t.Errorf("%d %s", code, body)
	}
	all[0].end()
	r.until("a place to be free", func() bool {
		res := r.stream(t.Context(), "main")
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	for _, rec := range all[1:] {
		rec.end()
	}
}
