package consulinit

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// enterprise answers as a Consul Enterprise does: everything has a namespace and a
// partition in it, those that were written or else the default ones, and Consul's
// own fields.
type enterprise struct {
	t       *testing.T
	entries map[string][]map[string]any // by kind
	asked   []string                    // method, path, namespace, partition
}

func (e *enterprise) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	e.asked = append(e.asked, strings.Join([]string{req.Method, req.URL.Path, q.Get("ns"), q.Get("partition")}, " "))
	kind := strings.TrimPrefix(req.URL.Path, "/v1/config/")
	var answer any = true
	switch {
	case req.URL.Path == "/v1/query" && req.Method == http.MethodPost:
		answer = map[string]any{"ID": "one"}
		e.keep(KindQuery, req.Body, "Service")
	case req.URL.Path == "/v1/internal/acl/authorize":
		answer = []map[string]any{{"Allow": true}}
	case req.Method == http.MethodPut:
		e.keep("", req.Body, "")
	case req.URL.Path == "/v1/query":
		answer = e.entries[KindQuery]
	default:
		answer = e.entries[kind]
	}
	text, err := json.Marshal(answer)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(text))), Request: req}, err
}

// keep notes what is written, filled up as the server does, below a field if any.
func (e *enterprise) keep(kind string, r io.Reader, below string) {
	var v map[string]any
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		e.t.Error(err)
	}
	if kind == "" {
		kind, _ = v["Kind"].(string)
	}
	in := v
	if below != "" {
		in, _ = v[below].(map[string]any)
	}
	for key, own := range map[string]any{"Namespace": "default", "Partition": "default"} {
		if in[key] == nil {
			in[key] = own
		}
	}
	v["CreateIndex"], v["ModifyIndex"], v["TransparentProxy"] = 7, 8, map[string]any{}
	if kind != KindQuery {
		v["Hash"] = uint64(17194155867498513133) // since pull request 19795 of hashicorp/consul
	}
	e.entries[kind] = append(e.entries[kind], v)
}

// Namespace and partition are in each request and in each document, and those that
// Consul adds by itself are no difference.
func TestTenants(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  *config.Config
		want string
	}{
		"of their own": {load(t, "testdata/external.yaml"), " team az1"},
		"none":         {parse(t, "external", "main"), "  "},
	} {
		t.Run(name, func(t *testing.T) {
			e := &enterprise{t: t, entries: make(map[string][]map[string]any)}
			client, err := consul.NewClient(consul.ClientOptions{Transport: e, Namespace: c.cfg.Consul.Namespace, Partition: c.cfg.Consul.Partition})
			if err != nil {
				t.Fatal(err)
			}
			docs := documents(t, c.cfg, "pg-gateway")
			if err := bring(t.Context(), client, docs); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Lacking(t.Context(), []consul.Right{{Resource: "service", Name: "main", Access: consul.Read}}); err != nil {
				t.Error(err)
			}
			for _, q := range e.asked {
				if !strings.HasSuffix(q, c.want) {
					t.Errorf("%q is not for%s", q, c.want)
				}
			}
			if len(e.asked) != 4+len(docs)+1 { // a list a kind, a write a document, and the rights
				t.Errorf("asked: %q", e.asked)
			}
			all, err := Compare(t.Context(), client, docs)
			if err != nil || len(needed(t, all)) != 0 {
				t.Errorf("%v differ from what was written (%v)", needed(t, all), err)
			}
		})
	}
}
