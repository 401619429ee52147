package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// rig is a server on a clock that a test moves.
type rig struct {
	*Server
	now    time.Time
	tokens Tokens
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{now: noon}
	clock := func() time.Time { return r.now }
	book := maintenance.Open(maintenance.Options{
		Path: filepath.Join(t.TempDir(), "maintenance.json"), Read: os.ReadFile, Now: clock, Changed: func() {},
	})
	book.Share(nil)
	r.Server = New(Options{
		Book: book, Views: new(latest.Map[string, topology.View]), Now: topology.NewTicker(clock),
		Clusters: func() []string { return []string{"main"} }, Policy: func(string) topology.Policy { return topology.DefaultPolicy() },
		Tokens: func() Tokens { return r.tokens },
	})
	return r
}

func (r *rig) ask(method, path, from, auth string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, nil)
	req.RemoteAddr = from
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

func parsed(t *testing.T, text string) []Token {
	t.Helper()
	all, err := ParseTokens([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A token file has a token a line, with a name or without.
func TestTokenFile(t *testing.T) {
	all := parsed(t, "# people\nann 0123456789abcdef\n\n  fedcba9876543210\r\n")
	if len(all) != 2 || all[0].Name != "ann" || all[1].Name != "" {
		t.Errorf("the tokens are %+v", all)
	}
	for _, text := range []string{"", "# nobody\n", "short", "ann 0123456789abcde", "ann of 0123456789abcdef"} {
		if all, err := ParseTokens([]byte(text)); err == nil {
			t.Errorf("%q is taken: %+v", text, all)
		}
	}
}

// Who may do what: by the scheme Bearer and the whole token, whoever has it.
func TestRoles(t *testing.T) {
	r := newRig(t)
	both := Tokens{Viewers: parsed(t, "viewer-0123456789"), Admins: parsed(t, "ann admin-0123456789\nbob other-0123456789")}
	onlyAdmins := Tokens{Admins: both.Admins}
	for _, tt := range []struct {
		tokens       Tokens
		auth         string
		look, change int
	}{
		{Tokens{}, "", 200, 403},
		{both, "", 401, 401},
		{onlyAdmins, "", 401, 401},
		{both, "Bearer viewer-0123456789", 200, 403},
		{both, "Bearer admin-0123456789", 200, 200},
		{both, "bearer  other-0123456789", 200, 200},
		{both, "Basic admin-0123456789", 401, 401},
		{both, "admin-0123456789", 401, 401},
		{both, "Bearer admin-012345678", 401, 401},
		{both, "Bearer admin-01234567890", 401, 401},
		{both, "Bearer ", 401, 401},
		{Tokens{Viewers: both.Viewers}, "Bearer viewer-0123456789", 200, 403},
	} {
		r.tokens = tt.tokens
		r.now = r.now.Add(time.Minute)
		for _, path := range []string{"/admin/maintenance", "/api/v1/maintenance"} {
			if got := r.ask("GET", path, "192.0.2.1:1", tt.auth); got.Code != tt.look {
				t.Errorf("%q looks at %s: %d %s, want %d", tt.auth, path, got.Code, got.Body, tt.look)
			}
		}
		for _, method := range []string{"POST", "DELETE"} {
			if got := r.ask(method, "/admin/maintenance", "192.0.2.1:1", tt.auth); got.Code != tt.change {
				t.Errorf("%q makes %s: %d %s, want %d", tt.auth, method, got.Code, got.Body, tt.change)
			}
		}
	}
}

// Who asks too often is told so, whatever the token; others are served, and the
// memory of callers is bounded.
func TestRateLimit(t *testing.T) {
	r := newRig(t)
	r.tokens = Tokens{Admins: parsed(t, "admin-0123456789")}
	served := 0
	for range 3 * burst {
		if w := r.ask("DELETE", "/admin/maintenance", "192.0.2.1:1", "Bearer wrong"); w.Code == 401 {
			served++
		} else if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if served != burst {
		t.Errorf("%d tries at once, want %d", served, burst)
	}
	if w := r.ask("DELETE", "/admin/maintenance", "192.0.2.1:2", "Bearer admin-0123456789"); w.Code != http.StatusTooManyRequests {
		t.Errorf("a right token among guesses from the same host: %d", w.Code)
	}
	if w := r.ask("DELETE", "/admin/maintenance", "192.0.2.2:1", "Bearer admin-0123456789"); w.Code != 200 {
		t.Errorf("another host: %d", w.Code)
	}
	r.now = r.now.Add(time.Second)
	if w := r.ask("DELETE", "/admin/maintenance", "192.0.2.1:1", "Bearer admin-0123456789"); w.Code != 200 {
		t.Errorf("a second later: %d", w.Code)
	}
	for i := range 3 * maxCallers {
		r.ask("GET", "/admin/maintenance", fmt.Sprintf("[2001:db8::%x]:1", i), "")
	}
	if n := len(r.callers); n > maxCallers {
		t.Errorf("%d callers are remembered", n)
	}
}

// While nothing is decided nobody can tell what a change would do: it needs force,
// and a cluster that nobody has is not found.
func TestUndecided(t *testing.T) {
	r := newRig(t)
	r.tokens = Tokens{Admins: parsed(t, "admin-0123456789")}
	w := r.ask("POST", "/admin/maintenance/main", "192.0.2.1:1", "Bearer admin-0123456789")
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "with force") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.ask("POST", "/admin/maintenance/man", "192.0.2.1:1", "Bearer admin-0123456789"); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.ask("DELETE", "/admin/maintenance/gone/n7", "192.0.2.1:1", "Bearer admin-0123456789"); w.Code != 200 {
		t.Errorf("the end of a record of what is gone: %d %s", w.Code, w.Body)
	}
}

// The manual has every key of a POST, and no other.
func TestManualHasTheKeys(t *testing.T) {
	b, err := os.ReadFile("../../docs/maintenance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "| key | meaning |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	for f := range reflect.TypeFor[Change]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the manual has %v, the program %v", got, want)
	}
}

// Answers and the list say who obeys; those for the agent itself, whose bodies are
// others' contract, say nothing more.
func TestScope(t *testing.T) {
	r := newRig(t)
	r.tokens = Tokens{Admins: parsed(t, "ann admin-0123456789")}
	key := ""
	r.o.Shared = func() string { return key }
	says := func(method, path, want string) {
		t.Helper()
		r.now = r.now.Add(time.Minute)
		if w := r.ask(method, path, "192.0.2.1:1", "Bearer admin-0123456789"); !strings.Contains(w.Body.String(), want) || want == "" && strings.Contains(w.Body.String(), "scope") {
			t.Errorf("%s %s: %s, want %s", method, path, w.Body, want)
		}
	}
	for _, scope := range []string{"this agent", "all agents of k"} {
		for _, method := range []string{"POST", "POST", "DELETE"} {
			says(method, "/admin/maintenance", "")
		}
		says("DELETE", "/admin/maintenance/main", `"scope":"`+scope+`"`)
		says("GET", "/api/v1/maintenance", `{"records":[],"scope":"`+scope+`"`)
		key = "k"
	}
}
