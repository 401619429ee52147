package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	adminToken  = "admin-0123456789abcdef"
	viewerToken = "viewer-0123456789abcdef"
)

// guarded writes the token files and returns the section that names them.
func (r *rig) guarded(more string) string {
	r.file("admin.token", "# on call\nann "+adminToken+"\n")
	r.file("viewer.token", viewerToken+"\n")
	return "maintenance: {admin_token_file: admin.token, viewer_token_file: viewer.token" + more + "}\n"
}

// call asks the status listener as somebody.
func (r *rig) call(method, path, token, body string) (code int, text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.addr(partStatus)+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(b))
}

// change makes a change that must be taken.
func (r *rig) change(method, path, body string) string {
	r.t.Helper()
	code, text := r.call(method, path, adminToken, body)
	if code != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return text
}

// verdict is that of a node in a pool, with its leading reason.
func (r *rig) verdict(pool, node string) string {
	v := r.view("main")
	if v == nil {
		return ""
	}
	p, _ := v.Snapshot.Pool(pool)
	n, _ := p.Verdict(node)
	return n.Verdict.String() + "/" + string(n.Reason().Code) + "/" + n.Reason().Text
}

func (r *rig) isNow(pool, node, want string) {
	r.t.Helper()
	r.until(node+" to be "+want+" in "+pool, func() bool { return strings.HasPrefix(r.verdict(pool, node), want) })
}

var instant = regexp.MustCompile(`"20\d\d-[^"]+Z"`)

// manual plays the calls that the manual lists, in order.
func (r *rig) manual() {
	r.t.Helper()
	b, err := os.ReadFile("../docs/maintenance.md")
	if err != nil {
		r.t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z]+) (/admin/maintenance)` \\| (\\w+) \\| (\\d+) `(.*)` \\|$")
	rows := row.FindAllStringSubmatch(string(b), -1)
	for _, c := range rows {
		token := map[string]string{"admin": adminToken, "viewer": viewerToken, "none": ""}[c[3]]
		code, body := r.call(c[1], c[2], token, "")
		if got := fmt.Sprintf("%d %s", code, instant.ReplaceAllString(body, `"…"`)); got != c[4]+" "+c[5] {
			r.t.Errorf("%s\n  is answered %s", c[0], got)
		}
	}
	if len(rows) < 9 {
		r.t.Errorf("the manual has %d calls", len(rows))
	}
}

// The contract of pgmux's maintenance mode, to the letter, and what it does here:
// everything is out, /readyz says so before anything else.
func TestMaintenanceOfTheAgent(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), r.guarded(""), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	const path = "/admin/maintenance"
	r.manual()
	for _, step := range []struct {
		method, token string
		code          int
		body          string
	}{
		{"POST", adminToken + "x", 401, `{"error":"a valid token is needed (Authorization: Bearer …)"}`},
		{"GET", "", 401, `{"error":"a valid token is needed (Authorization: Bearer …)"}`},
		{"GET", adminToken, 200, `{"enabled":false}`},
		{"POST", adminToken, 200, `{"status":"maintenance_entered","entered_at":"…"}`},
	} {
		code, body := r.call(step.method, path, step.token, "")
		if got := instant.ReplaceAllString(body, `"…"`); code != step.code || got != step.body {
			t.Errorf("%s with %q: %d %s, want %d %s", step.method, step.token, code, got, step.code, step.body)
		}
	}
	r.isNow("primary", "n1", "drain/maintenance")
	r.isNow("replica", "n2", "drain/maintenance")
	code, body := r.get(partStatus, "/readyz")
	var ready map[string]string
	_ = json.Unmarshal([]byte(body), &ready)
	if code != 503 || len(ready) != 2 || ready["status"] != "not_ready" || ready["reason"] != "maintenance mode active" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if got := r.ask("main replica n2"); got != "up 0% #no reason given" {
		t.Errorf("the agent check says %q", got)
	}
	code, body = r.get(partHealth, "/clusters/main/pools/primary/nodes/n1")
	if code != 503 || !strings.Contains(body, `"code":"maintenance"`) {
		t.Errorf("the health check: %d %s", code, body)
	}
	for series, want := range map[string]string{
		"pgsteer_maintenance_mode": "1", "pgsteer_maintenance_refused_total": "2",
		"pgsteer_maintenance_records": "1",
		`pgsteer_node_reason{cluster="main",node="n2",pool="replica",reason="maintenance"}`: "1",
	} {
		if got := r.metric(series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
	if got := r.change("DELETE", path, ""); got != `{"status":"maintenance_exited"}` {
		t.Errorf("DELETE says %s", got)
	}
	r.settled("main", "n1", "n2")
	if code, _ := r.get(partStatus, "/readyz"); code != 200 || r.metric("pgsteer_maintenance_mode") != "0" {
		t.Errorf("afterwards /readyz is %d and the mode %s", code, r.metric("pgsteer_maintenance_mode"))
	}
	for _, want := range []string{
		"audit=start target=\"this agent\" token=ann from=127.0.0.1", "audit=stop target=\"this agent\" token=ann from=127.0.0.1", "audit=\"refused: no right\"",
	} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
	if strings.Contains(r.log.String(), adminToken) || strings.Contains(r.log.String(), viewerToken) {
		t.Error("a token stands in the log")
	}
}

// A node is out at once and by every dialect, whatever happens to the agent; no
// rendered file changes. Refused without force: the primary and the last replica
// of a pool that would be empty; the answer says what force does.
func TestMaintenanceOfANode(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	files := "templates: [{name: ha, files: [{builtin: haproxy, destination: out.cfg}], check: [\"true\", \"{{.Staged}}\"]}]\n"
	r.write(base, listen("agent_check: "+freePort(t), "status: "+freePort(t)), r.guarded(""), "clusters:\n", clusterText("main", n1, n2), "    pools: {primary: {mode: write, listen: \""+freePort(t)+"\"}, replica: {mode: read}, strict: {mode: read, fallback: none}}\n", files)
	r.up()
	r.settled("main", "n1", "n2")
	rendered := func() string {
		b, _ := os.ReadFile(filepath.Join(r.dir, "out.cfg"))
		return string(b)
	}
	r.until("the file", func() bool { return strings.Contains(rendered(), "n2") })
	before := rendered()
	for path, want := range map[string]string{
		"main/n1":              "n1 is the primary: pool primary takes no new session",
		"main/n2":              "pool strict is left without a node",
		"main/n2?pool=strict":  "pool strict is left without a node",
		"main":                 "n1 is the primary",
		"main?pool=primary":    "n1 is the primary",
		"main/n1?pool=primary": "n1 is the primary",
	} {
		code, text := r.call("POST", "/admin/maintenance/"+path, adminToken, `{"reason":"test"}`)
		if code != 409 || !strings.Contains(text, want) || !strings.Contains(text, "Nothing was changed; with force it is taken out all the same") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for path, want := range map[string]int{"other": 404, "main/n9": 404, "main/n2?pool=x": 404, "main/../n2": 404} {
		if code, text := r.call("POST", "/admin/maintenance/"+path, adminToken, ""); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, body := range []string{`{"for":"soon"}`, `{"for":"-1m"}`, `{"reson":"x"}`, `{"reason":"a\nb"}`, `{} {}`, `{`, strings.Repeat(" ", 1<<17)} {
		if code, text := r.call("POST", "/admin/maintenance/main/n2", adminToken, body); code != 400 {
			t.Errorf("%.20s: %d %s", body, code, text)
		}
	}
	if got := r.verdict("replica", "n2"); !strings.HasPrefix(got, "up/") {
		t.Fatalf("after refusals n2 is %s", got)
	}
	r.change("POST", "/admin/maintenance/main/n2", `{"reason":"kernel","who":"ann","for":"1h","force":true}`)
	r.isNow("replica", "n2", "drain/maintenance/kernel")
	if got := r.ask("main replica n2"); got != "up 0% #kernel" {
		t.Errorf("the agent check says %q", got)
	}
	// The primary serves reads in the same decision; n1 is not out.
	r.isNow("replica", "n1", "up/fallback")
	r.down()
	r.up()
	r.writer("main", "n1")
	r.isNow("replica", "n2", "drain/maintenance/kernel")
	// Words and end can be changed without an end.
	if got := r.change("POST", "/admin/maintenance/main/n2", `{"reason":"new kernel"}`); !strings.Contains(got, "already in maintenance mode") {
		t.Errorf("a second POST says %s", got)
	}
	r.isNow("replica", "n2", "drain/maintenance/new kernel")
	if _, text := r.call("GET", "/admin/maintenance/main/n2", viewerToken, ""); !strings.Contains(text, `"until":"`) || !strings.Contains(text, `"who":"ann"`) {
		t.Errorf("GET says %s", text)
	}
	if s := r.statusText(); !strings.Contains(s, "- maintenance of main/n2 since") {
		t.Errorf("the status is %s", s)
	}
	if rendered() != before {
		t.Error("maintenance changed the rendered file")
	}
	r.change("POST", "/admin/maintenance/main?pool=replica", `{"force":true}`)
	if got := r.change("DELETE", "/admin/maintenance/main/n2?pool=replica", ""); got != `{"status":"not in maintenance mode","still_out_by":["main in pool replica","main/n2"],"scope":"this agent"}` {
		t.Errorf("DELETE of what is out by others says %s", got)
	}
	r.change("DELETE", "/admin/maintenance/main?pool=replica", "")
	r.change("DELETE", "/admin/maintenance/main/n2", "")
	r.settled("main", "n1", "n2")
}

// A record ends by itself, on the second, and sessions end at their deadline.
func TestMaintenanceEndsByItself(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), r.guarded(""), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	r.change("POST", "/admin/maintenance/main/n2", `{"for":"1h","drain":"30m"}`)
	if s := r.statusText(); !strings.Contains(s, ", sessions end at ") {
		t.Errorf("the status has no end of sessions: %s", s)
	}
	r.change("POST", "/admin/maintenance/main/n2", `{"for":"1s","drain":"300ms","force":true}`)
	r.isNow("replica", "n2", "drain/maintenance")
	r.isNow("replica", "n2", "down/maintenance")
	if got := r.ask("main replica n2"); !strings.HasPrefix(got, "down #") {
		t.Errorf("after the deadline the agent check says %q", got)
	}
	r.until("its end", func() bool { return !strings.Contains(r.verdict("replica", "n2"), "maintenance") })
	if _, text := r.call("GET", "/admin/maintenance/main/n2", viewerToken, ""); text != `{"enabled":false}` {
		t.Errorf("after its end: %s", text)
	}
	r.settled("main", "n1", "n2")
}

// Tokens are read again when their file changes; without one nobody changes anything.
func TestMaintenanceTokensFollowTheirFile(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	section := r.guarded("")
	r.write(base, listen(), section, "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	code := func(token string) int {
		c, _ := r.call("DELETE", "/admin/maintenance", token, "")
		return c
	}
	const next = "another-0123456789abcdef"
	r.file("admin.token", next+"\n")
	if a, b := code(adminToken), code(next); a != 401 || b != 200 {
		t.Errorf("after a change the old token gets %d and the new one %d", a, b)
	}
	r.file("admin.token", "short\n")
	if a, b := code("short"), code(next); a != 401 || b != 200 {
		t.Errorf("after a faulty change it gets %d and the last good one %d", a, b)
	}
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if c, text := r.call("POST", "/admin/maintenance", next, ""); c != 403 || !strings.Contains(text, "admin_token_file") {
		t.Errorf("without a file: %d %s", c, text)
	}
	if c, _ := r.call("GET", "/admin/maintenance", "", ""); c != 200 {
		t.Errorf("without a file looking gets %d", c)
	}
	r.write(base, listen(), section, "clusters:\n", clusterText("main", n1, n2))
	if err := r.reload(); err == nil {
		t.Error("a token file that cannot be used is taken")
	}
}

// A file that cannot be used is set aside and told; a disk that takes nothing
// refuses the change.
func TestMaintenanceFileTrouble(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), r.guarded(""), "clusters:\n", clusterText("main", n1, n2))
	cfg, err := config.Load(r.path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.StateDir, "maintenance.json")
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"version": 1, "records": [{"clu`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.up()
	r.settled("main", "n1", "n2")
	if _, err := os.Stat(path + ".corrupt"); err != nil || r.metric(`pgsteer_sink_ok{sink="maintenance"}`) != "0" {
		t.Errorf("the file was not set aside and told: %v", err)
	}
	// A folder in its place cannot be replaced by a file.
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	code, text := r.call("POST", "/admin/maintenance/main/n2", adminToken, `{"force":true}`)
	if code != 503 || !strings.Contains(text, "nothing was changed") || !strings.HasPrefix(r.verdict("replica", "n2"), "up/") {
		t.Errorf("%d %s, n2 is %s", code, text, r.verdict("replica", "n2"))
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	r.change("POST", "/admin/maintenance/main/n2", `{"force":true}`)
	r.isNow("replica", "n2", topology.Drain.String()+"/maintenance")
}
