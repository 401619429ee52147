package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that must come.
const patience = 60 * time.Second

// rig is a lab with one agent, configured by a file.
type rig struct {
	t    testing.TB
	lab  *lab.Lab
	path string // of the configuration

	state string // folder, of the lab's

	check, health, status, xds string // the agent's listeners

	agent *agent.Agent
	stop  context.CancelFunc
	ended chan error
}

// newRig returns a rig whose agent does not run yet.
func newRig(tb testing.TB, needs ...string) *rig {
	tb.Helper()
	return newRigIn(tb, labtest.ForTest(tb, append([]string{lab.NeedPostgres}, needs...)...), "pgsteer")
}

// newRigIn returns another rig of a lab, whose agent has this name.
func newRigIn(tb testing.TB, l *lab.Lab, name string) *rig {
	tb.Helper()
	r := &rig{t: tb, lab: l, path: filepath.Join(l.Dir(), name+".yaml"), state: filepath.Join(l.Dir(), name+"-state")}
	for _, a := range []*string{&r.check, &r.health, &r.status, &r.xds} {
		*a = r.addr()
	}
	tb.Cleanup(r.down)
	return r
}

// addr returns a free loopback address.
func (r *rig) addr() string {
	r.t.Helper()
	a, err := r.lab.FreeAddr()
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// configure writes the configuration: the rig's listeners and state folder,
// and what the test adds. It writes aside and renames, as deployments do.
func (r *rig) configure(format string, args ...any) {
	r.t.Helper()
	text := fmt.Sprintf("state_dir: %s\nlisten: {agent_check: %q, health: %q, status: %q, xds: %q}\n",
		r.state, r.check, r.health, r.status, r.xds) + fmt.Sprintf(format, args...)
	if err := os.WriteFile(r.path+".new", []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
}

// up starts the agent with the file that configure wrote.
func (r *rig) up() {
	r.t.Helper()
	r.upWith(func() (*config.Config, error) { return config.Load(r.path) })
}

// upWith starts the agent with a configuration from elsewhere.
func (r *rig) upWith(load func() (*config.Config, error)) {
	r.t.Helper()
	a, err := agent.New(agent.Options{
		Load:   load,
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)).With("server", "pgsteer"),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.agent, r.stop, r.ended = a, stop, make(chan error, 1)
	go func() { r.ended <- a.Run(ctx) }()
}

// down stops the agent as SIGTERM does.
func (r *rig) down() {
	if r.stop == nil {
		return
	}
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Errorf("the agent ended with: %v", err)
	}
	r.stop = nil
}

// password writes the probe role's password to a file and returns its path.
func (r *rig) password(text string) string {
	r.t.Helper()
	path := filepath.Join(r.lab.Dir(), "probe.pw")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// view returns the newest view of a cluster, nil before the first.
func (r *rig) view(cluster string) *topology.View { return r.agent.Views().Get(cluster) }

// until waits for a condition and returns how long it took.
func (r *rig) until(what string, ok func() bool) time.Duration {
	r.t.Helper()
	return r.within(patience, what, ok)
}

// within is until with a bound of its own.
func (r *rig) within(d time.Duration, what string, ok func() bool) time.Duration {
	r.t.Helper()
	begin := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := begin.Add(d); !ok(); {
		if <-tick.C; time.Now().After(end) {
			r.t.Fatalf("waited %s for %s; the agent says:\n%s", d, what, r.statusText())
		}
	}
	return time.Since(begin)
}

// during fails the test when a condition does not hold all the time.
func (r *rig) during(d time.Duration, what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < d; <-tick.C {
		if !ok() {
			r.t.Fatalf("%s after it did not hold: %s; the agent says:\n%s", time.Since(begin), what, r.statusText())
		}
	}
}

// verdict returns the verdict on a node and its leading reason.
func (r *rig) verdict(cluster, pool, node string) (topology.Verdict, topology.Code) {
	v := r.view(cluster)
	if v == nil {
		return topology.Undecided, topology.CodeNoEvidence
	}
	p, _ := v.Snapshot.Pool(pool)
	n, _ := p.Verdict(node)
	return n.Verdict, n.Reason().Code
}

// is waits for a verdict with a reason; an empty code means any. A replica that
// returned a moment ago, and whose weight grows, serves like any other.
func (r *rig) is(cluster, pool, node string, want topology.Verdict, code topology.Code) time.Duration {
	r.t.Helper()
	return r.until(fmt.Sprintf("%s/%s/%s to be %s %s", cluster, pool, node, want, code), func() bool {
		v, c := r.verdict(cluster, pool, node)
		return v == want && (code == "" || c == code || code == topology.CodeReplica && c == topology.CodeRamping)
	})
}

// ask sends one agent check and returns the answer without its line end; "" is silence.
func (r *rig) ask(request string) string {
	r.t.Helper()
	c, err := net.DialTimeout("tcp", r.check, time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	return exchange(c, request)
}

// mayAsk is ask of an agent that may be away; that is silence too.
func (r *rig) mayAsk(request string) string {
	c, err := net.DialTimeout("tcp", r.check, time.Second)
	if err != nil {
		return ""
	}
	return exchange(c, request)
}

// exchange sends an agent check and reads the answer, at most for 2 s.
func exchange(c net.Conn, request string) string {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, request+"\n"); err != nil {
		return ""
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimRight(line, "\r\n")
}

// get asks over HTTP; status 0 means that there was no answer.
func (r *rig) get(address, path string) (code int, body string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// statusText is what `pgsteer status` prints.
func (r *rig) statusText() string {
	code, body := r.get(r.status, "/api/v1/status")
	var rep status.Report
	if code != http.StatusOK || json.Unmarshal([]byte(body), &rep) != nil {
		return fmt.Sprintf("(status %d) %s", code, body)
	}
	var b strings.Builder
	status.WriteStatus(&b, rep)
	return b.String()
}

// explain is what `pgsteer explain` prints.
func (r *rig) explain(cluster, node string) string {
	r.t.Helper()
	code, body := r.get(r.status, "/api/v1/explain/"+cluster+"/"+node)
	var e status.Explanation
	if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil {
		r.t.Fatalf("explain %s/%s: status %d: %s", cluster, node, code, body)
	}
	return e.Text
}
