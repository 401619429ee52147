package consultest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Request is a request as the agent saw it.
type Request struct {
	At         time.Time
	Method     string
	Path       string // without /v1
	Key        string // of the store
	Recurse    bool
	Index      uint64
	Wait       time.Duration
	Consistent bool
	Stale      bool
	Token      string
	Query      url.Values
	Body       []byte
}

// The limits of a blocking query.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
)

// Requests returns every request so far, oldest first.
func (a *Agent) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Request(nil), a.requests...)
}

// Asked returns how many requests there were so far.
func (a *Agent) Asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// ServeHTTP serves the agent on a real socket. A scripted reset closes the
// connection without an answer.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resp, err := a.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// RoundTrip answers a request, after its wait if it blocks.
func (a *Agent) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := parse(req)
	if err != nil {
		return nil, err
	}
	f, err := a.receive(req.Context(), r)
	if err != nil {
		return nil, err
	}
	if f.Hang {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if f.Reset {
		return nil, a.reset(req.Context(), f.ResetAfter)
	}
	if f.Status != 0 {
		return respond(req, f.Status, []byte(f.Text), http.Header{}), nil
	}
	switch service, ok := strings.CutPrefix(r.Path, "/catalog/service/"); {
	case ok:
		return a.read(req, question{r, f, func() find { return a.lookupService(service, f) }})
	case strings.HasPrefix(r.Path, "/health/service/"):
		name := strings.TrimPrefix(r.Path, "/health/service/")
		return a.read(req, question{r, f, func() find { return a.lookupHealth(name, f) }})
	case r.Path == "/health/state/any":
		return a.read(req, question{r, f, func() find { return a.lookupState(r, f) }})
	case r.Method == http.MethodGet && strings.HasPrefix(r.Path, "/kv/"):
		return a.read(req, question{r, f, func() find { return a.lookupKeys(r, f) }})
	case r.Path == "/txn":
		return a.txn(req, r, f)
	}
	return a.command(req, r), nil
}

func parse(req *http.Request) (Request, error) {
	q := req.URL.Query()
	r := Request{
		At: time.Now(), Method: req.Method, Query: q, Token: req.Header.Get("X-Consul-Token"),
		Path: strings.TrimPrefix(req.URL.Path, "/v1"), Recurse: q.Has("recurse"),
		Consistent: q.Has("consistent"), Stale: q.Has("stale"),
	}
	r.Key, _ = strings.CutPrefix(r.Path, "/kv/")
	r.Index, _ = strconv.ParseUint(q.Get("index"), 10, 64)
	r.Wait, _ = time.ParseDuration(q.Get("wait"))
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return r, err
		}
		r.Body = b
	}
	return r, nil
}

// receive notes a request and finds out what shall happen to it.
func (a *Agent) receive(ctx context.Context, r Request) (Fault, error) {
	a.mu.Lock()
	if a.isDown {
		a.mu.Unlock()
		return Fault{}, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	a.requests = append(a.requests, r)
	script, token := a.script, a.token
	a.mu.Unlock()
	if err := a.thawed(ctx); err != nil {
		return Fault{}, err
	}
	if token != "" && r.Token != token {
		return Fault{Status: http.StatusForbidden, Text: "Permission denied: token lacks permission 'key:read'"}, nil
	}
	if script == nil {
		return Fault{}, nil
	}
	return script(r), nil
}

// thawed waits while the agent is frozen.
func (a *Agent) thawed(ctx context.Context) error {
	for {
		a.mu.Lock()
		halted := a.halted
		a.mu.Unlock()
		if halted == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-halted:
		}
	}
}

func (a *Agent) reset(ctx context.Context, after time.Duration) error {
	if err := later(ctx, after); err != nil {
		return err
	}
	return errReset()
}

func errReset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// question is a read that may block.
type question struct {
	r    Request
	f    Fault
	look func() find // needs Agent.mu
}

// find is what there is at one moment.
type find struct {
	body     any // nil: nothing, which is a 404
	index    uint64
	missing  bool // a single key that does not exist
	filtered bool
}

// read answers a read: at once, or when the index has passed the asked one, or
// when the wait and its addition of a sixteenth are over. A single key that was
// missing and still is does not end a wait that has begun.
func (a *Agent) read(req *http.Request, q question) (*http.Response, error) {
	timer := time.NewTimer(holdFor(q.r, q.f))
	defer timer.Stop()
	wasMissing := false
	for over := false; ; {
		a.mu.Lock()
		found := q.look()
		changed, down := a.changed, a.down
		a.mu.Unlock()
		if over || q.r.Index == 0 || q.f.NoBlock || found.index > q.r.Index && (!found.missing || !wasMissing) {
			return a.answer(req, q, found)
		}
		wasMissing = found.missing
		select {
		case <-req.Context().Done():
			return nil, req.Context().Err()
		case <-down:
			return nil, errReset()
		case <-changed:
		case <-timer.C:
			over = true
		}
		if err := a.thawed(req.Context()); err != nil {
			return nil, err
		}
	}
}

func holdFor(r Request, f Fault) time.Duration {
	wait := r.Wait
	if wait == 0 {
		wait = defaultWait
	}
	wait = min(wait, maxWait)
	return wait + wait/16 + f.Delay
}

func (a *Agent) answer(req *http.Request, q question, found find) (*http.Response, error) {
	if q.r.Index == 0 {
		if err := later(req.Context(), q.f.Delay); err != nil {
			return nil, err
		}
	}
	status, body := http.StatusOK, []byte(nil)
	if found.body == nil {
		status = http.StatusNotFound
	} else {
		body = mustJSON(found.body)
	}
	q.f.Filtered = q.f.Filtered || found.filtered
	return respond(req, status, body, a.headers(q.f, found.index)), nil
}

// later waits for d, unless ctx ends before.
func later(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (a *Agent) headers(f Fault, index uint64) http.Header {
	if f.Index != 0 {
		index = f.Index
	}
	h := http.Header{}
	h.Set("X-Consul-Index", strconv.FormatUint(index, 10))
	h.Set("X-Consul-LastContact", strconv.FormatInt(f.LastContact.Milliseconds(), 10))
	h.Set("X-Consul-KnownLeader", strconv.FormatBool(!f.NoLeader))
	h.Set("X-Consul-Effective-Consistency", "leader")
	if f.IndexZero {
		h.Set("X-Consul-Index", "0")
	}
	if f.NoHeaders {
		h = http.Header{}
	}
	if f.Filtered {
		h.Set("X-Consul-Results-Filtered-By-Acls", "true")
	}
	if f.DefaultDeny {
		h.Set("X-Consul-Default-Acl-Policy", "deny")
	}
	return h
}

func respond(req *http.Request, status int, body []byte, h http.Header) *http.Response {
	h.Set("Content-Type", "application/json")
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, Request: req,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(errors.Join(errors.New("consultest: its own values cannot be marshalled"), err))
	}
	return b
}
