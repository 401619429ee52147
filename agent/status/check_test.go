package status

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestCheck: the verdict itself where there is one, undecided where nothing may be
// believed, and an error for names that mean nobody or several.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		world, path string
		code        int
		want        string // beginning of the line, or of the error
	}{
		{"up", "main/primary/n1", http.StatusOK, "main/primary/n1 is up with weight 100%: writer, "},
		{"up", "main/primary/n2", http.StatusOK, "main/primary/n2 is down: wrong_role"},
		{"up", "be_main_primary/n1", http.StatusOK, "main/primary/n1 is up with weight 100%: writer, "},
		{"drain", "main/replica/n3", http.StatusOK, "main/replica/n3 is drain: "},
		{"undecided", "main/primary/n1", http.StatusOK, "main/primary/n1 is undecided: "},
		{"stale", "main/primary/n1", http.StatusOK, "main/primary/n1 is undecided: no_evidence, the last decision is too old to be believed"},
		{"up", "main/primary/n9", http.StatusNotFound, "cluster main has no node n9 in a pool primary"},
		{"up", "main/nosuch/n1", http.StatusNotFound, "cluster main has no node n1 in a pool nosuch"},
		{"up", "nope/primary/n1", http.StatusNotFound, "there is no cluster nope; known are: main"},
		{"up", "be_nope/n1", http.StatusNotFound, "there is no pool whose backend is be_nope; the backend of pool primary of cluster main is be_main_primary"},
	} {
		code, body := get(worlds[tt.world]().server(), "/api/v1/check/"+tt.path)
		var got struct {
			Check
			Error string `json:"error"`
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		text := got.Error
		if code == http.StatusOK {
			text = got.String()
		}
		if code != tt.code || !strings.HasPrefix(text, tt.want) || strings.ContainsAny(text, "\n") {
			t.Errorf("%s %s: %d %q, want %d %q", tt.world, tt.path, code, text, tt.code, tt.want)
		}
	}
}

// A backend's name may come from two pools of two clusters; then nobody is meant.
func TestCheckOfAnAmbiguousBackend(t *testing.T) {
	w := worlds["up"]()
	s := w.server()
	s.o.Clusters = func() []string { return []string{"a", "a_b"} }
	s.o.Policy = func(name string) topology.Policy {
		return topology.Policy{Pools: []topology.Pool{{Name: map[string]string{"a": "b_c", "a_b": "c"}[name]}}}
	}
	code, body := get(s, "/api/v1/check/be_a_b_c/n1")
	if code != http.StatusConflict || !strings.Contains(body, "may be pool b_c of cluster a or pool c of cluster a_b") {
		t.Errorf("%d %s", code, body)
	}
}
