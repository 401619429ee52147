package healthapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// allowed are the methods that health checks take.
const allowed = "GET, HEAD, OPTIONS"

// reply is an answer that is ready to be sent, also several times.
type reply struct {
	status int
	body   []byte
	// Header values as net/http keeps them; they are shared and never changed.
	reason, length, kind []string
	maintained           bool // a refusal that an operator's word leads
}

var (
	noStore    = []string{"no-store"}
	retryAfter = []string{"1"} // evidence is renewed each second, an earlier question learns nothing new
	noLength   = []string{"0"}
	allow      = []string{allowed}
	kindJSON   = []string{"application/json"}
	kindText   = []string{"text/plain; version=0.0.4; charset=utf-8"} // Prometheus' form
)

type errorBody struct {
	Error string `json:"error"`
	// Ask is where Patroni itself answers, if that is known.
	Ask string `json:"ask,omitempty"`
}

func newReply(status int, why topology.Reason, body any) *reply {
	b := encode(body)
	return &reply{
		status: status, body: b, reason: []string{headerText(why)}, length: []string{strconv.Itoa(len(b))}, kind: kindJSON,
		maintained: status != http.StatusOK && why.Code == topology.CodeMaintenance,
	}
}

// encode writes JSON on one line. The bodies hold no value that JSON refuses.
func encode(body any) []byte {
	b, err := json.Marshal(body)
	if err != nil {
		return []byte("{}\n")
	}
	return append(b, '\n')
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	s.reply(w, r, status, topology.Reason{Text: text}, errorBody{Error: text})
}

func (s *Server) reply(w http.ResponseWriter, r *http.Request, status int, why topology.Reason, body any) {
	s.send(w, r, newReply(status, why, body))
}

// send sends a body of known length. HEAD has the length of what GET would send.
func (s *Server) send(w http.ResponseWriter, r *http.Request, p *reply) {
	h := w.Header()
	if p.maintained {
		s.counters.Maintenance.Add(1)
	}
	switch p.status {
	case http.StatusOK:
		s.counters.OK.Add(1)
	case http.StatusServiceUnavailable:
		s.counters.Unavailable.Add(1)
		h["Retry-After"] = retryAfter
	default:
		s.counters.Other.Add(1)
	}
	h["X-Pgsteer-Reason"] = p.reason
	h["Cache-Control"] = noStore
	if r.Method == http.MethodOptions {
		h["Allow"] = allow
		h["Content-Length"] = noLength
		w.WriteHeader(p.status)
		return
	}
	h["Content-Type"] = p.kind
	h["Content-Length"] = p.length
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(p.body) // a client that went away is no news
	}
}

// headerText is a reason as one header value: "code: text" in printable ASCII.
func headerText(r topology.Reason) string {
	t := r.Text
	if r.Code != "" {
		t = string(r.Code)
		if r.Text != "" {
			t += ": " + r.Text
		}
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, t)
}
