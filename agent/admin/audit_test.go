package admin

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// lines are what was logged since the last call, without time.
func (l *logged) lines() []string {
	text := strings.TrimSuffix(l.String(), "\n")
	l.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// logged is a log.
type logged struct{ bytes.Buffer }

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// change asks for a change with a body.
func (r *rig) change(method, path, auth, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.RemoteAddr = "192.0.2.1:1"
	req.Header.Set("Authorization", auth)
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

// Every change that is refused is one line: who, from where, what, and why, which is
// what the caller was told; never a token, and not more than a caller may have repeated.
func TestRefusalsAreAudited(t *testing.T) {
	r, log := newRig(t), new(logged)
	r.o.Logger = log.logger()
	r.tokens = Tokens{Viewers: parsed(t, "vera viewer-0123456789"), Admins: parsed(t, "ann admin-0123456789")}
	const ann, vera = "Bearer admin-0123456789", "Bearer viewer-0123456789"
	served := r.Guarded("switchover", func(*http.Request) string { return "main" }, func(http.ResponseWriter, *http.Request, Caller) {
		t.Error("it was served")
	})
	for _, tt := range []struct {
		method, path, auth, body string
		code                     int
		line, why                string
	}{
		{"POST", "/admin/maintenance/main", ann, `{"resaon":"x"}`, 400, `level=INFO msg=maintenance audit=refused target=main token=ann from=192.0.2.1`, `unknown field \"resaon\"; nothing was changed`},
		{"POST", "/admin/maintenance/main", ann, `{"for":"soon"}`, 400, `audit=refused target=main token=ann from=192.0.2.1`, `for: \"soon\" is no time`},
		{"POST", "/admin/maintenance/man", ann, ``, 404, `audit=refused target=man token=ann from=192.0.2.1`, `there is no cluster \"man\"`},
		{"POST", "/admin/maintenance/main/n7", ann, ``, 404, `audit=refused target=main/n7 token=ann from=192.0.2.1`, `there is no node \"n7\"`},
		{"POST", "/admin/maintenance/main?pool=rw", ann, ``, 404, `audit=refused target="main in pool rw" token=ann from=192.0.2.1`, `there is no pool \"rw\"`},
		{"DELETE", "/admin/maintenance/ma%20in", ann, ``, 404, `audit=refused target="ma in" token=ann from=192.0.2.1`, `only letters, digits`},
		{"POST", "/admin/maintenance/main", ann, `{"who":"bob","reason":"disk"}`, 409, `audit=refused target=main token=ann from=192.0.2.1 who=bob reason=disk`, `why=`},
		{"POST", "/admin/maintenance/main", vera, ``, 403, `level=WARN msg=maintenance audit="refused: no right" target=main token=vera from=192.0.2.1`, `why="this token may look and change nothing`},
		{"DELETE", "/admin/maintenance", "Bearer guess-0123456789", ``, 401, `audit="refused: no right" target="this agent" token="" from=192.0.2.1`, `why="a valid token is needed`},
		{"POST", "/switchover", vera, ``, 403, `msg=switchover audit="refused: no right" target=main token=vera from=192.0.2.1`, `may look and change nothing`},
		{"POST", "/admin/maintenance/main", ann, `{"` + strings.Repeat("x", 5000) + `":1}`, 400, `audit=refused target=main token=ann`, `xxx…"`},
	} {
		r.now = r.now.Add(time.Minute)
		var w *httptest.ResponseRecorder
		if tt.path == "/switchover" {
			req := httptest.NewRequest(tt.method, tt.path, nil)
			req.Header.Set("Authorization", tt.auth)
			w = httptest.NewRecorder()
			served.ServeHTTP(w, req)
		} else {
			w = r.change(tt.method, tt.path, tt.auth, tt.body)
		}
		got := log.lines()
		if w.Code != tt.code || len(got) != 1 || !strings.Contains(got[0], tt.line) || !strings.Contains(got[0], tt.why) || len(got[0]) > 2*maxWhy || strings.Contains(got[0], "0123456789") {
			t.Errorf("%s %s %.40s: %d %s\n%s\nwant %d, one line with %s and %s", tt.method, tt.path, tt.body, w.Code, w.Body, strings.Join(got, "\n"), tt.code, tt.line, tt.why)
		}
	}
	r.now = r.now.Add(time.Minute)
	for _, path := range []string{"/admin/maintenance/man", "/api/v1/maintenance"} {
		if w := r.change("GET", path, "Bearer x", ""); w.Code != 401 || log.Len() > 0 {
			t.Errorf("a look that is refused: %d\n%s", w.Code, log)
		}
	}
}

// Of changes that a host asks too often for the first is a line, until it is heard again.
func TestTooOftenIsAuditedOnce(t *testing.T) {
	r, log := newRig(t), new(logged)
	r.o.Logger = log.logger()
	r.tokens = Tokens{Admins: parsed(t, "ann admin-0123456789")}
	for range 2 {
		for range burst {
			r.change("GET", "/admin/maintenance", "Bearer admin-0123456789", "")
		}
		for _, method := range []string{"GET", "DELETE", "DELETE", "GET", "POST"} {
			if w := r.change(method, "/admin/maintenance/main", "Bearer admin-0123456789", ""); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: %d", method, w.Code)
			}
		}
		got := log.lines()
		if want := `audit="refused: too many requests" target=main token=ann from=192.0.2.1 why="too many requests from 192.0.2.1; ask again in a second"`; len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%q, want one line with %s", got, want)
		}
		r.now = r.now.Add(time.Minute)
	}
}
