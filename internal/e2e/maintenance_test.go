package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

const operator = "operator-0123456789abcdef"

// maintain calls the maintenance API as an operator.
func (r *rig) maintain(method, path, body string) (code int, text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patient)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.status+"/admin/maintenance/"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+operator)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// maintained makes a change that must be taken, and returns when it was.
func (r *rig) maintained(method, path, body string) time.Time {
	r.t.Helper()
	if code, text := r.maintain(method, path, body); code != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return time.Now()
}

// A node is taken out before a real HAProxy and a real Envoy at once: within a
// second no new session reaches it, no client fails, what runs there runs on, and
// HAProxy is not reloaded. Put back, it serves again, but where an operator has set
// it to MAINT at HAProxy himself it stays so until he ends that. With records that agents
// share, the same comes of a word to an agent that has no balancer, and of its time's end.
func TestMaintenanceBeforeBalancers(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true, envoy: true, replica: ", envoy_sessions: health-check", top: "maintenance: {admin_token_file: operator.token}\n", external: func(f *front) {
		f.replace("operator.token", operator+"\n")
		f.up()
	}})
	worker, file := f.worker(), f.rendered()
	n2 := f.node("n2").Port()
	held := map[string]*pgx.Conn{"HAProxy": f.session(f.read, n2), "Envoy": f.session(f.envoyRead, n2)}
	loads := map[string]*lab.Load{
		"HAProxy": f.lab.Load(f.read, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient}),
		"Envoy":   f.lab.Load(f.envoyRead, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient}),
	}
	for name, l := range loads {
		f.do(l.Wait(t.Context(), name+" to lead readers to n2", func(x lab.Sample) bool { return x.Port == n2 && x.Err == nil }))
	}

	out := f.maintained(http.MethodPost, "main/n2", `{"reason":"kernel","who":"dba","for":"1h"}`)
	f.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
	f.until("two seconds of readers", func() bool { return time.Since(out) > 2*time.Second })
	for name, l := range loads {
		last := lastOn(l.Samples(), n2, out)
		t.Logf("%s: the last new session on n2 began %s after the answer", name, last)
		if last > time.Second {
			t.Errorf("%s: a new session came to n2 %s after it was taken out", name, last)
		}
		if p := serverPort(held[name]); p != n2 {
			t.Errorf("%s: the session on n2 did not go on: port %d", name, p)
		}
	}

	// An operator's own word at HAProxy.
	f.command("set server be_main_replica/n2 state maint")
	f.maintained(http.MethodDelete, "main/n2", "")
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	f.until("Envoy to lead readers to n2 again", func() bool { return f.reached(f.envoyRead) == n2 })
	f.during(time.Second, "n2 stays in MAINT at HAProxy", func() bool { return f.admin("n2") == "1" })
	for _, x := range loads["HAProxy"].Samples() {
		if x.Op == lab.Connect && x.Port == n2 && x.At.After(out.Add(time.Second)) {
			t.Fatalf("HAProxy led a session to n2 at %s, against the operator's word", x.At)
		}
	}
	f.command("set server be_main_replica/n2 state ready")
	f.until("HAProxy to lead readers to n2 again", func() bool { return f.reached(f.read) == n2 })
	for name, l := range loads {
		f.unbroken("readers through "+name, l.Stop())
	}
	f.deadline(n2)
	f.force()
	t.Run("shared", f.testShared)
	if now := f.worker(); now != worker || f.rendered() != file {
		t.Errorf("HAProxy's worker was %d and is %d, the file changed: %t", worker, now, f.rendered() != file)
	}
}

// testShared: another agent is asked, which serves no balancer, and the balancers of this
// one obey; when the record's time is over they lead to the node again, by nobody's word.
func (f *front) testShared(t *testing.T) {
	labtest.Need(t, lab.NeedConsul)
	store, err := f.lab.Consul(t.Context())
	f.do(err)
	f.o.top = fmt.Sprintf("consul: {address: \"http://%s\"}\nmaintenance: {store: consul, admin_token_file: operator.token}\n", store.Addr())
	f.writeConfig()
	f.do(f.agent.Reload(t.Context()))
	other := *f
	other.o.haproxy = false
	asked := newRigIn(f.t, f.lab, "asked")
	asked.configure("%s", other.config())
	asked.up()
	asked.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)

	n2 := f.node("n2").Port()
	loads := map[string]*lab.Load{
		"HAProxy": f.lab.Load(f.read, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient}),
		"Envoy":   f.lab.Load(f.envoyRead, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient}),
	}
	for name, l := range loads {
		f.do(l.Wait(t.Context(), name+" to lead readers to n2", func(x lab.Sample) bool { return x.Port == n2 && x.Err == nil }))
	}
	const lasts, bound = 5 * time.Second, 3 * time.Second // all agents obey within a second; a busy machine takes longer
	begin := time.Now()
	out := asked.maintained(http.MethodPost, "main/n2", fmt.Sprintf(`{"reason":"kernel","for":%q}`, lasts))
	f.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
	for name, l := range loads {
		again := begin.Add(lasts)
		f.do(l.Wait(t.Context(), name+" to lead readers to n2 again", func(x lab.Sample) bool {
			return x.Op == lab.Connect && x.Port == n2 && x.Err == nil && x.At.After(again)
		}))
		var before []lab.Sample
		for _, x := range l.Stop() {
			if x.At.Before(again) {
				before = append(before, x)
			} else if x.Op == lab.Connect && x.Port == n2 {
				t.Logf("%s led a new session to n2 %s after the end of the record", name, x.At.Sub(out.Add(lasts)))
				break
			}
		}
		last := lastOn(before, n2, out)
		t.Logf("%s: asked at another agent, the last new session on n2 began %s after the answer", name, last)
		if last > bound {
			t.Errorf("%s: a new session came to n2 %s after it was taken out at another agent", name, last)
		}
		f.unbroken("readers through "+name, l.Samples())
	}
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	if code, text := asked.maintain(http.MethodGet, "main/n2", ""); code != http.StatusOK || strings.TrimSpace(text) != `{"enabled":false}` {
		t.Errorf("after its end: %d %s", code, text)
	}
	asked.down()
}

// deadline: sessions that are still there when their time is over end.
func (f *front) deadline(port int) {
	f.t.Helper()
	ended := map[string]<-chan time.Time{
		"HAProxy": watchEnd(f.t, f.session(f.read, port)), "Envoy": watchEnd(f.t, f.session(f.envoyRead, port)),
	}
	out := f.maintained(http.MethodPost, "main/n2", `{"reason":"kernel","drain":"1s"}`)
	f.endAt(ended, out, time.Second)
	f.maintained(http.MethodDelete, "main/n2", "")
}

// endAt: balancers end sessions when their time is over, counted from a moment.
func (r *rig) endAt(ended map[string]<-chan time.Time, out time.Time, drain time.Duration) {
	r.t.Helper()
	for name, end := range ended {
		select {
		case at := <-end:
			r.t.Logf("%s: with %s to drain the session ended after %s", name, drain, at.Sub(out))
			if d := at.Sub(out); d < drain-100*time.Millisecond || d > drain+3*time.Second {
				r.t.Errorf("%s: a session with %s to drain ended after %s", name, drain, d)
			}
		case <-time.After(patience):
			r.t.Errorf("%s: the session did not end", name)
		}
	}
}

// force: the primary is taken out only by force; then nobody writes anew, and who
// writes already goes on.
func (f *front) force() {
	f.t.Helper()
	writer := f.session(f.write, f.writer().Port())
	if code, text := f.maintain(http.MethodPost, "main/n1", `{"reason":"disk"}`); code != http.StatusConflict || !strings.Contains(text, "n1 is the primary") {
		f.t.Errorf("the primary: %d %s", code, text)
	}
	if f.reached(f.write) == 0 {
		f.t.Error("after a refusal no session reaches the primary")
	}
	f.maintained(http.MethodPost, "main/n1", `{"reason":"disk","force":true}`)
	f.until("no new session to reach the primary", func() bool { return f.reached(f.write) == 0 && f.reached(f.envoyWrite) == 0 })
	if serverPort(writer) != f.writer().Port() {
		f.t.Error("the writer's session did not go on")
	}
	f.maintained(http.MethodDelete, "main/n1", "")
	f.until("new sessions to reach the primary again", func() bool {
		return f.reached(f.write) == f.writer().Port() && f.reached(f.envoyWrite) == f.writer().Port()
	})
}

// rendered is HAProxy's file.
func (f *front) rendered() string {
	f.t.Helper()
	b, err := os.ReadFile(f.file("haproxy.cfg"))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// command tells HAProxy something that it must take.
func (f *front) command(text string) {
	f.t.Helper()
	if out, err := f.haproxy.Command(f.t.Context(), text); err != nil || strings.TrimSpace(out) != "" {
		f.t.Fatalf("%s: %q, %v", text, out, err)
	}
}

// admin are the administrative bits of a server of the read pool; 1 is MAINT.
func (f *front) admin(server string) string {
	f.t.Helper()
	out, err := f.haproxy.Command(f.t.Context(), "show servers state be_main_replica")
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if w := strings.Fields(line); len(w) > 7 && w[3] == server {
			return w[6]
		}
	}
	return ""
}

// With admin_words: always pgsteer's word is the only one: who is out by a record is
// in DRAIN at HAProxy, stays so against an operator's ready, and comes back with the
// end of the record.
func TestMaintenanceByAdminWords(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true, top: "agent_check: {admin_words: always}\nmaintenance: {admin_token_file: operator.token}\n", external: func(f *front) {
		f.replace("operator.token", operator+"\n")
		f.up()
	}})
	n2 := f.node("n2").Port()
	held := f.session(f.read, n2)
	f.maintained(http.MethodPost, "main/n2", `{"reason":"kernel"}`)
	const drain = "8"
	drained := f.until("n2 to be in DRAIN", func() bool { return f.admin("n2") == drain })
	f.command("set server be_main_replica/n2 state ready")
	again := f.until("n2 to be in DRAIN again", func() bool { return f.admin("n2") == drain })
	if p := serverPort(held); p != n2 {
		t.Errorf("the session on n2 did not go on: port %d", p)
	}
	_ = held.Close(t.Context()) // which leastconn would count against n2
	f.maintained(http.MethodDelete, "main/n2", "")
	ready := f.until("n2 to be ready", func() bool { return f.admin("n2") == "0" })
	f.until("n2 to serve", func() bool { return f.reached(f.read) == n2 })
	t.Logf("in DRAIN after %s, against an operator's word after %s, ready after %s", drained, again, ready)
}
