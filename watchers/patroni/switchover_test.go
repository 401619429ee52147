package patroni_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/watchers/patroni"
)

// The request goes to the first member where somebody listens, once; a refusal is
// Patroni's own word, and is put to nobody else.
func TestSwitchover(t *testing.T) {
	var asked []string
	code, word := http.StatusOK, "Successfully switched over"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked = append(asked, strings.Join([]string{r.Method, r.URL.Path, string(b), r.Header.Get("Authorization")}, " "))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, word)
	}))
	defer srv.Close()
	away := httptest.NewServer(nil)
	away.Close()
	q := patroni.SwitchoverRequest{URLs: []string{away.URL, srv.URL, srv.URL}, Authorization: "Basic x", Leader: "n1", Candidate: "n2"}
	if err := patroni.Switchover(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	code, word = http.StatusPreconditionFailed, "leader name\ndoes not match"
	q.Candidate, q.Authorization = "", ""
	if err := patroni.Switchover(t.Context(), q); err == nil || !strings.Contains(err.Error(), "412: leader name does not match") {
		t.Errorf("a refusal: %v", err)
	}
	want := []string{
		`POST /switchover {"leader":"n1","candidate":"n2"} Basic x`,
		`POST /switchover {"leader":"n1"} `,
	}
	if strings.Join(asked, "|") != strings.Join(want, "|") {
		t.Errorf("asked was %q, want %q", asked, want)
	}
	q.URLs = q.URLs[:1]
	if err := patroni.Switchover(t.Context(), q); err == nil {
		t.Error("nobody was there, and all is well")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := patroni.Switchover(ctx, patroni.SwitchoverRequest{URLs: []string{srv.URL}}); err == nil {
		t.Error("a request after the end of its context")
	}
}
