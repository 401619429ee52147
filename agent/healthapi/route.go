package healthapi

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// check is one of Patroni's health checks.
type check func(*Server, *subject) answer

// checks by the last element of the path. The mux of net/http cannot serve them:
// it redirects "//primary", refuses a trailing slash and OPTIONS, and balancers
// in the field send all three.
func checkNamed(name string) check {
	switch name {
	case "", "primary", "master", "read-write":
		return (*Server).primary
	case "replica":
		return (*Server).replica
	case "leader":
		return (*Server).leader
	case "standby-leader", "standby_leader":
		return (*Server).standbyLeader
	case "read-only":
		return (*Server).readOnly
	case "health":
		return (*Server).health
	}
	return nil
}

// ServeHTTP answers a health check.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handle := s.route(elements(r.URL.Path))
	switch {
	case handle == nil:
		s.refuse(w, r, http.StatusNotFound, "no such path")
	case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions:
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		s.refuse(w, r, http.StatusMethodNotAllowed, "health checks take GET, HEAD and OPTIONS")
	default:
		handle(w, r)
	}
}

// elements cuts a path at its slashes, however many stand together.
func elements(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

func (s *Server) route(e []string) http.HandlerFunc {
	var local bool
	ref, name := *s.local.Load(), ""
	switch {
	case len(e) <= 1 && ref != NodeRef{}:
		local = true
		name = strings.Join(e, "")
	case len(e) == 5 && e[0] == "clusters" && e[2] == "nodes":
		ref, name = NodeRef{e[1], e[3]}, e[4]
	case len(e) == 6 && e[0] == "clusters" && e[2] == "pools" && e[4] == "nodes":
		return func(w http.ResponseWriter, r *http.Request) {
			s.servePool(w, r, poolRef{NodeRef{e[1], e[5]}, e[3]}, s.opts.DrainStatus)
		}
	case len(e) == 5 && e[0] == "clusters" && e[2] == "pools" && e[4] == "check":
		return func(w http.ResponseWriter, r *http.Request) {
			s.servePool(w, r, poolRef{NodeRef{e[1], hostName(r.Host)}, e[3]}, http.StatusOK)
		}
	}
	c := checkNamed(name)
	if c == nil || name == "" && !local {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) { s.serveCheck(w, r, ref, c) }
}

// hostName cuts the port off a Host header. Names of nodes have no colon.
func hostName(host string) string {
	name, _, _ := strings.Cut(host, ":")
	return name
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	s.reply(w, r, status, topology.Reason{Text: text}, errorBody{Error: text})
}

// reply sends a body of known length. HEAD has the length of what GET would send.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, status int, why topology.Reason, body any) {
	switch status {
	case http.StatusOK:
		s.counters.OK.Add(1)
	case http.StatusServiceUnavailable:
		s.counters.Unavailable.Add(1)
	default:
		s.counters.Other.Add(1)
	}
	b := encode(body)
	h := w.Header()
	h.Set("X-Pgsteer-Reason", headerText(why))
	h.Set("Cache-Control", "no-store")
	if r.Method == http.MethodOptions {
		h.Set("Allow", "GET, HEAD, OPTIONS")
		b = nil
	} else {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // for HEAD the server drops it; a client that went away is no news
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
