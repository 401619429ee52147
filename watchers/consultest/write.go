package consultest

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

// errUnserved says that a request is beyond this fake.
var errUnserved = errors.New("consultest serves transactions of get-tree, of lock, and of check-session with writes to the catalog, only")

// command serves everything but reads of the store: PUT and DELETE of keys with
// acquire, release and cas, and the life of sessions.
func (a *Agent) command(req *http.Request, r Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.Method == http.MethodPut && strings.HasPrefix(r.Path, "/kv/"):
		return a.putKey(req, r)
	case r.Method == http.MethodDelete && strings.HasPrefix(r.Path, "/kv/"):
		return a.deleteKey(req, r)
	case r.Method == http.MethodPut && r.Path == "/session/create":
		return a.createSession(req, r)
	case r.Method == http.MethodPut && strings.HasPrefix(r.Path, "/session/"):
		return a.touchSession(req, strings.TrimPrefix(r.Path, "/session/"))
	case r.Path == "/catalog/register" || r.Path == "/catalog/deregister":
		return a.catalogCommand(req, r)
	case strings.HasPrefix(r.Path, "/catalog/node-services/"):
		return a.nodeServices(req, strings.TrimPrefix(r.Path, "/catalog/node-services/"))
	case strings.HasPrefix(r.Path, "/agent/"):
		return a.agentCommand(req, r)
	case r.Path == "/status/leader":
		return a.ok(req, "127.0.0.1:8300")
	}
	return respond(req, http.StatusNotFound, []byte("consultest: "+r.Method+" "+r.Path+" is not served"), http.Header{})
}

func (a *Agent) ok(req *http.Request, v any) *http.Response {
	return respond(req, http.StatusOK, mustJSON(v), a.headers(Fault{}, a.index))
}

func (a *Agent) putKey(req *http.Request, r Request) *http.Response {
	if !a.casHolds(r) {
		return a.ok(req, false)
	}
	if id := r.Query.Get("acquire"); id != "" {
		if _, ok := a.sessions[id]; !ok {
			return respond(req, http.StatusInternalServerError, []byte("invalid session "+strconv.Quote(id)), http.Header{})
		}
		return a.ok(req, a.acquire(r.Key, r.Body, id))
	}
	if id := r.Query.Get("release"); id != "" {
		return a.ok(req, a.release(r.Key, r.Body, id))
	}
	a.put(r.Key, r.Body)
	return a.ok(req, true)
}

func (a *Agent) deleteKey(req *http.Request, r Request) *http.Response {
	if !a.casHolds(r) {
		return a.ok(req, false)
	}
	if !r.Recurse {
		a.remove(r.Key)
		return a.ok(req, true)
	}
	for _, p := range a.list(r.Key) {
		a.remove(p.Key)
	}
	return a.ok(req, true)
}

// casHolds compares the index given with cas; 0 means that the key must not exist.
func (a *Agent) casHolds(r Request) bool {
	if !r.Query.Has("cas") {
		return true
	}
	want, err := strconv.ParseUint(r.Query.Get("cas"), 10, 64)
	return err == nil && a.pairs[r.Key].ModifyIndex == want
}

func (a *Agent) createSession(req *http.Request, r Request) *http.Response {
	var s Session
	if len(r.Body) > 0 {
		if err := json.Unmarshal(r.Body, &s); err != nil {
			return respond(req, http.StatusBadRequest, []byte("Request decode failed: "+err.Error()), http.Header{})
		}
	}
	s = a.newSession(s)
	return a.ok(req, map[string]string{"ID": s.ID})
}

func (a *Agent) touchSession(req *http.Request, rest string) *http.Response {
	verb, id, _ := strings.Cut(rest, "/")
	s, ok := a.sessions[id]
	switch {
	case verb == "destroy":
		a.endSession(id)
		return a.ok(req, true)
	case verb == "renew" && ok:
		return a.ok(req, []Session{s})
	}
	return respond(req, http.StatusNotFound, []byte("Session id '"+id+"' not found"), http.Header{})
}
