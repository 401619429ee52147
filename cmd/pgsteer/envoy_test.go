package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/config"
)

// Where nobody says which clusters there are, that is said on the second stream, and the
// file is printed all the same. Without --clusters there is nothing to look at.
func TestUncheckedClusters(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"envoy-bootstrap --clusters main --clusters b --server 192.0.2.1:7434", "pgsteer: --clusters main,b was not checked: "},
		{"envoy-bootstrap --server 192.0.2.1:7434", ""},
	} {
		var out, errs bytes.Buffer
		code := run(strings.Fields(tt.args), streams{&out, &errs})
		if code != 0 || !strings.Contains(out.String(), "192.0.2.1") || !strings.HasPrefix(errs.String(), tt.says) || (tt.says == "") != (errs.Len() == 0) {
			t.Errorf("%s: code %d, %q, %.100s", tt.args, code, &errs, &out)
		}
	}
}

// What is held back, refused or not known of is said before the table of streams, and a
// refusal of several lines is one in it.
func TestStatusOfEnvoys(t *testing.T) {
	const stream = `"streams":[{"node":"app7","peer":"10.0.0.7:1","protocol":"delta","types":[
		{"type":"LDS","all":true,"sent":2,"refused":1,"refusal":"Error main/primary: no\nmain/replica: neither\n"}],"uncut":["main/primary"]}]`
	for _, tt := range []struct{ is, says string }{
		{`{"waiting":["b","c"]}`, "No Envoy is answered before these clusters are decided: b c\nNo Envoy is subscribed.\n"},
		{`{"answering":true}`, "No Envoy is subscribed.\n"},
		{`{"answering":true,"waiting":["b","c"]}`, "These clusters are not decided; Envoys hear nothing of them and keep what they have: b c\nNo Envoy is subscribed.\n"},
		{`{"answering":true,` + stream + `}`, "Envoy app7 refused the listener main/primary and keeps what it had: its sessions there are not cut when the writer changes.\nNODE"},
		{`{"answering":true,` + stream + `}`, "  Error main/primary: no; main/replica: neither\n"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.WriteString(w, tt.is); err != nil || r.URL.Path != "/debug/xds" {
				t.Errorf("asked for %s: %v", r.URL.Path, err)
			}
		}))
		var out, errs bytes.Buffer
		code := run([]string{"status", "--xds", "--address", srv.Listener.Addr().String()}, streams{&out, &errs})
		srv.Close()
		if code != 0 || !strings.Contains(out.String(), tt.says) || len(tt.is) < 100 && out.String() != tt.says {
			t.Errorf("of %s it says, with code %d,\n%s%s, want\n%s", tt.is, code, &out, &errs, tt.says)
		}
	}
}

// The agent of this host counts where the Envoy subscribes to it, and not otherwise.
func TestServedByTheAgentOfThisHost(t *testing.T) {
	for _, tt := range []struct {
		xds, servers, files string
		want                bool
	}{
		{"127.0.0.1:7434", "127.0.0.1:7434", "", true},
		{"[::]:7434", "10.0.0.1:7434 localhost:7434", "", true},
		{"10.0.0.1:7434", "10.0.0.1:7434", "", true},
		{"0.0.0.0:7434", "10.0.0.1:7434", "", false},
		{"127.0.0.1:7435", "127.0.0.1:7434", "", false},
		{"", "127.0.0.1:7434", "", false},
		{"", "127.0.0.1:7434", "/run/envoy", true},
	} {
		c := bootstrapCmd{Server: strings.Fields(tt.servers), Files: tt.files}
		if got := c.servedBy(map[string]string{"xds": tt.xds}); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
	if d := string(config.Default().Listen.Status); d != localStatus {
		t.Errorf("the agent of this host is asked at %s, and is at %s", localStatus, d)
	}
}

// A name that an agent lacks is refused by what it says, be it not decided of yet.
func TestClustersOfAnAgent(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/status" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if _, err := io.WriteString(w, `{"clusters":[{"name":"main","snapshot":null}]}`); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	address := strings.TrimPrefix(srv.URL, "http://")
	for name, want := range map[string]int{"main": 0, "mian": 2} {
		var out, errs bytes.Buffer
		code := run([]string{"envoy-bootstrap", "--clusters", name, "--address", address}, streams{&out, &errs})
		refused := fmt.Sprintf("`mian` is none of main; did you mean `main`?, the clusters of the agent at %s; nothing is printed", address)
		if code != want || strings.Contains(errs.String(), refused) != (want != 0) || (out.Len() > 0) != (want == 0) {
			t.Errorf("%s: code %d, %s%.100s", name, code, &errs, &out)
		}
	}
}
