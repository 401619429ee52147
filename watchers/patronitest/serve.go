package patronitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// RoundTrip answers a request at the address it is for.
func (c *Cluster) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	name := c.at[req.URL.Host]
	r := Request{At: time.Now(), Member: name, URL: req.URL.Scheme + "://" + req.URL.Host, Path: req.URL.Path}
	c.requests = append(c.requests, r)
	script := c.script
	c.mu.Unlock()
	f := Fault{}
	if script != nil {
		f = script(r)
	}
	if err := c.reach(req.Context(), name, f); err != nil {
		return nil, err
	}
	status, body, err := c.Answer(name, req.URL.Path)
	if err != nil && f.Status == 0 && f.Body == "" {
		return nil, err
	}
	status = cmp.Or(f.Status, status, http.StatusOK)
	if f.Body != "" || f.Status != 0 {
		body = []byte(f.Body)
	}
	if f.Cut > 0 {
		body = body[:min(f.Cut, len(body))]
	}
	return respond(req, status, body, f.Location), nil
}

// reach does what happens before there is an answer.
func (c *Cluster) reach(ctx context.Context, name string, f Fault) error {
	c.mu.Lock()
	var m Member
	if c.members[name] != nil {
		m = *c.members[name]
	}
	c.mu.Unlock()
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	switch {
	case f.Err != nil:
		return f.Err
	case name == "" || m.Down:
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	case f.Hang || m.Hung:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// Handler serves one member, which closes each connection after its answer.
func (c *Cluster) Handler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.URL.Host = name + ".test:8008"
		res, err := c.RoundTrip(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer func() { _ = res.Body.Close() }()
		maps.Copy(w.Header(), res.Header)
		w.Header().Set("Connection", "close")
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	})
}

func respond(req *http.Request, status int, body []byte, location string) *http.Response {
	h := http.Header{"Content-Type": {"application/json"}}
	if location != "" {
		h.Set("Location", location)
	}
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.0", ProtoMajor: 1, Header: h, Request: req,
		ContentLength: -1, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// Answer is what a member says on a path, had nothing happened to the request. The
// error is a connection that is closed without an answer.
func (c *Cluster) Answer(name, path string) (status int, body []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, sight := c.members[name], c.store
	if m.Sight != nil {
		sight = *m.Sight
	}
	switch path {
	case "/leader":
		status = http.StatusServiceUnavailable
		if m.Lock || m.Blind && sight.Pause && !m.Replica {
			status = http.StatusOK
		}
		return status, encode(c.status(m, sight)), nil
	case "/patroni":
		return http.StatusOK, encode(c.status(m, sight)), nil
	case "/cluster", "/config", "/history":
		if m.Blind { // the handler raises, and the connection is closed
			return 0, nil, &net.OpError{Op: "read", Net: "tcp", Err: io.EOF}
		}
	}
	switch {
	case path == "/cluster":
		m.New = false
		return http.StatusOK, encode(c.list(m, sight)), nil
	case path == "/config" && sight.Config == "":
		return http.StatusBadGateway, []byte("<html>502</html>"), nil
	case path == "/config":
		return http.StatusOK, []byte(sight.Config), nil
	case path == "/failsafe" && sight.Failsafe == "":
		return http.StatusBadGateway, []byte("<html>502</html>"), nil
	case path == "/failsafe":
		return http.StatusOK, []byte(sight.Failsafe), nil
	case path == "/history":
		return http.StatusOK, []byte(cmp.Or(sight.History, "[]")), nil
	}
	return http.StatusServiceUnavailable, encode(c.status(m, sight)), nil
}

type object = map[string]any

// status is the body of the health checks.
func (c *Cluster) status(m *Member, sight Store) object {
	patroni := object{"version": m.Version, "scope": c.scope}
	role := "primary"
	if m.Version == V3 {
		role = "master"
	} else {
		patroni["name"] = m.Name
	}
	if m.Replica {
		role = "replica"
	}
	o := object{
		"state": "running", "role": role, "dcs_last_seen": 1790000000, "database_system_identifier": m.SystemID, "patroni": patroni,
	}
	if m.Away {
		o["state"] = "unknown"
	} else {
		o["server_version"], o["timeline"] = 150018, m.Timeline
		o["xlog"] = object{"location": m.Location}
		if m.Replica {
			o["xlog"] = object{"received_location": m.Location, "replayed_location": m.Location, "replayed_timestamp": nil, "paused": false}
		}
	}
	if m.Blind || m.New || sight.Leader == "" {
		o["cluster_unlocked"] = true
	}
	if sight.Pause && m.Version != V3 {
		o["pause"] = true
	}
	return o
}

// list is the body of /cluster.
func (c *Cluster) list(m *Member, sight Store) object {
	var members []object
	for _, name := range slices.Sorted(maps.Keys(sight.Members)) {
		members = append(members, entry(m.Version, name, sight))
	}
	o := object{"members": members}
	if members == nil {
		o["members"] = []object{}
	}
	if m.Version != V3 {
		o["scope"] = c.scope
	}
	if sight.Pause {
		o["pause"] = true
	}
	return o
}

func entry(version, name string, s Store) object {
	e := s.Members[name]
	o := object{"name": name, "role": "replica", "state": e.State, "api_url": e.APIURL, "host": e.Host, "port": e.Port}
	var config struct {
		Standby object `json:"standby_cluster"`
		Sync    any    `json:"synchronous_mode"`
	}
	_ = json.Unmarshal([]byte(s.Config), &config)
	switch {
	case name == s.Leader && len(config.Standby) > 0:
		o["role"] = "standby_leader"
	case name == s.Leader:
		o["role"] = "leader"
	case slices.Contains(s.Sync, name) && config.Sync == "quorum" && version != V3:
		o["role"] = "quorum_standby"
	case slices.Contains(s.Sync, name):
		o["role"] = "sync_standby"
	}
	if e.Timeline != 0 {
		o["timeline"] = e.Timeline
	}
	if e.Tags != nil {
		o["tags"] = e.Tags
	}
	if name == s.Leader {
		return o
	}
	if version != V3 && e.State == "running" {
		o["state"] = "streaming"
	}
	o["lag"] = max(0, int64(s.Optime)-int64(e.LSN))
	if version != V3 {
		o["lsn"] = fmt.Sprintf("%X/%X", e.LSN>>32, uint32(e.LSN))
	}
	return o
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(errors.Join(errors.New("patronitest: its own values cannot be marshalled"), err))
	}
	return b
}
