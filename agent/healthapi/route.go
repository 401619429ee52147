package healthapi

import (
	"net/http"
	"net/url"
	"strings"
)

// endpoint is one of Patroni's paths.
type endpoint struct {
	name  string
	check func(*Server, *subject) answer
	// document makes the answer of those that are no checks, nil for checks.
	document func(*Server, *subject) *reply
	// The parameters that count: lag and lag_time, mode, replication_state, tag_.
	lag, mode, state, tags bool
}

// endpoints by their names without the leading slash.
var endpoints = func() map[string]endpoint {
	m := make(map[string]endpoint)
	add := func(e endpoint, more ...string) {
		m[e.name] = e
		for _, name := range more {
			m[name] = e
		}
	}
	reads := func(name string, check func(*Server, *subject) answer) endpoint {
		return endpoint{name: name, check: check, lag: true, state: true, tags: true}
	}
	add(endpoint{name: "primary", check: (*Server).primary}, "master", "read-write")
	add(endpoint{name: "leader", check: (*Server).leader})
	add(endpoint{name: "standby-leader", check: (*Server).standbyLeader}, "standby_leader")
	add(reads("replica", (*Server).replica))
	add(reads("read-only", (*Server).readOnly))
	add(reads("sync", standby("sync")), "synchronous")
	add(reads("async", standby("async")), "asynchronous")
	add(reads("quorum", standby("quorum")))
	add(reads("read-only-sync", readOnlyWith("sync")), "read-only-synchronous")
	add(reads("read-only-quorum", readOnlyWith("quorum")))
	add(endpoint{name: "health", check: (*Server).health, tags: true})
	add(endpoint{name: "readiness", check: (*Server).readiness, lag: true, mode: true})
	add(endpoint{name: "liveness", check: (*Server).liveness})
	add(endpoint{name: "patroni", check: (*Server).describe})
	add(endpoint{name: "cluster", document: (*Server).members})
	add(endpoint{name: "metrics", document: (*Server).metrics})
	for name := range stored {
		add(endpoint{name: name, document: storedAs(name)})
	}
	return m
}()

// target is what a request asks for.
type target struct {
	ref      NodeRef
	endpoint endpoint
	pool     string // of pool paths
	envoy    bool   // Envoy's path: drain is 200, the Host header names the node
	found    bool
}

// ServeHTTP answers a health check.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	set := s.settings.Load()
	if rep := s.recall(r, set); rep != nil {
		s.send(w, r, rep)
		return
	}
	t := set.route(r)
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	switch {
	case !t.found:
		s.refuse(w, r, http.StatusNotFound, "no such path")
	case !reads && t.pool == "" && set.Compat != Strict:
		s.refuse(w, r, http.StatusNotImplemented, "pgsteer observes and steers; ask Patroni itself")
	case !reads:
		w.Header().Set("Allow", allowed)
		s.refuse(w, r, http.StatusMethodNotAllowed, "health checks take GET, HEAD and OPTIONS")
	case t.pool != "":
		s.servePool(w, r, t, set)
	default:
		s.serveNode(w, r, t, set)
	}
}

// route finds what a request asks for. The mux of net/http cannot serve these
// paths: it redirects "//primary", refuses a trailing slash and OPTIONS, and
// balancers in the field send all three.
func (v *Settings) route(r *http.Request) target {
	e := elements(r.URL.EscapedPath())
	if len(e) > 2 && e[0] == "clusters" {
		return v.routeCluster(r, e)
	}
	switch {
	case v.Local == NodeRef{}:
		return target{}
	case v.Compat != Strict:
		return target{ref: v.Local, endpoint: patroniEndpoint(r.Method, patroniPath(r), v.Compat), found: true}
	case len(e) == 0:
		return target{ref: v.Local, endpoint: endpoints["primary"], found: true}
	}
	found, ok := endpoints[e[0]]
	return target{ref: v.Local, endpoint: found, found: ok && len(e) == 1}
}

// routeCluster finds what the paths below /clusters ask for.
func (v *Settings) routeCluster(r *http.Request, e []string) target {
	ref := NodeRef{Cluster: e[1]}
	switch {
	case len(e) == 3:
		found := endpoints[e[2]]
		return target{ref: ref, endpoint: found, found: e[2] == "cluster" || stored[e[2]] != nil}
	case len(e) == 6 && e[2] == "pools" && e[4] == "nodes":
		ref.Node = e[5]
		return target{ref: ref, pool: e[3], found: true}
	case len(e) == 5 && e[2] == "pools" && e[4] == "check":
		ref.Node = hostName(r.Host)
		return target{ref: ref, pool: e[3], envoy: true, found: true}
	case e[2] != "nodes":
		return target{}
	}
	ref.Node = e[3]
	switch {
	case v.Compat != Strict:
		return target{ref: ref, endpoint: patroniEndpoint(r.Method, below(patroniPath(r), 4), v.Compat), found: true}
	case len(e) == 4:
		return target{ref: ref, endpoint: endpoints["primary"], found: true}
	}
	found, ok := endpoints[e[4]]
	return target{ref: ref, endpoint: found, found: ok && len(e) == 5}
}

// elements cuts an escaped path at its slashes, however many stand together, and
// decodes what is between them.
func elements(escaped string) []string {
	all := strings.FieldsFunc(escaped, func(c rune) bool { return c == '/' })
	for i, e := range all {
		if plain, err := url.PathUnescape(e); err == nil {
			all[i] = plain
		}
	}
	return all
}

// below is a path without its first elements, with one slash at its beginning.
func below(path string, n int) string {
	for range n {
		_, path, _ = strings.Cut(strings.TrimLeft(path, "/"), "/")
	}
	return "/" + strings.TrimLeft(path, "/")
}

// patroniPath is the path as Patroni sees it: not decoded, without parameters of
// its last element, and with one slash at its beginning.
func patroniPath(r *http.Request) string {
	path := r.URL.EscapedPath()
	if strings.HasPrefix(path, "//") {
		path = "/" + strings.TrimLeft(path, "/")
	}
	last := strings.LastIndexByte(path, '/') + 1
	if i := strings.IndexByte(path[last:], ';'); i >= 0 {
		path = path[:last+i]
	}
	return path
}

// hostName cuts the port off a Host header. Names of nodes have no colon.
func hostName(host string) string {
	name, _, _ := strings.Cut(host, ":")
	return name
}

// serveNode answers for a node.
func (s *Server) serveNode(w http.ResponseWriter, r *http.Request, t target, set *Settings) {
	sub := s.look(t.ref, set)
	var err error
	if sub.query, err = parseQuery(r.URL.RawQuery, t.endpoint, set.Compat); err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	var rep *reply
	if t.endpoint.document != nil {
		rep = t.endpoint.document(s, sub)
	} else {
		rep = s.judge(sub, t.endpoint)
	}
	s.remember(r, rep, basis{cluster: t.ref.Cluster, view: sub.view, settings: set, until: sub.until})
	s.send(w, r, rep)
}

// judge makes a check's answer.
func (s *Server) judge(sub *subject, e endpoint) *reply {
	a, absent := sub.absent()
	if !absent {
		a = e.check(s, sub)
	}
	if a.ok {
		if mismatch, ok := sub.query.matches(sub.node); !ok {
			a = mismatch
		}
	}
	status := http.StatusServiceUnavailable
	if a.ok {
		status = http.StatusOK
	}
	return newReply(status, a.reason, s.nodeBody(sub, a))
}
