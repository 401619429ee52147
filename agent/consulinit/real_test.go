package consulinit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// server is a real Consul, and a client of it.
type server struct {
	*lab.Consul
	t      *testing.T
	client *consul.Client
}

func newServer(t *testing.T, o lab.ConsulOptions) *server {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedConsul)
	c, err := l.ConsulWith(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Consul: c, t: t}
	s.client = s.with("")
	return s
}

// with is a client with the token of a file.
func (s *server) with(tokenFile string) *consul.Client {
	s.t.Helper()
	c, err := consul.NewClient(consul.ClientOptions{Address: s.Addr(), TokenFile: tokenFile})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// ask asks Consul and wants an answer.
func (s *server) ask(method, path, body string) string {
	s.t.Helper()
	out, err := s.API(s.t.Context(), method, path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// needed are the IDs of what differs, those that are foreign with a mark of interrogation.
func needed(t *testing.T, all []Change) []string {
	t.Helper()
	var out []string
	for _, c := range all {
		switch {
		case c.Needed() && c.Foreign:
			out = append(out, c.ID()+"?")
		case c.Needed():
			out = append(out, c.ID())
		}
	}
	return out
}

func (s *server) compare(docs []Document) []Change {
	s.t.Helper()
	all, err := Compare(s.t.Context(), s.client, docs)
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// bring writes all that is needed, until one fails.
func bring(ctx context.Context, client *consul.Client, docs []Document) error {
	all, err := Compare(ctx, client, docs)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Needed() {
			if err := c.Write(ctx, client); err != nil {
				return err
			}
		}
	}
	return nil
}

// A second run has nothing to do; what somebody else made or changed is told apart
// from what was made here, and what changed since the comparison is not written.
func TestRealDocuments(t *testing.T) {
	s := newServer(t, lab.ConsulOptions{})
	for _, cfg := range []*config.Config{load(t, "testdata/local.yaml"), parse(t, "external", "main", "shop")} {
		gateway := ""
		if cfg.Mesh.Mode == config.MeshExternal {
			gateway = "pg-gateway"
		}
		docs := documents(t, cfg, gateway)
		if len(needed(t, s.compare(docs))) == 0 {
			t.Error("there is nothing to do before anything was done")
		}
		if err := bring(t.Context(), s.client, docs); err != nil {
			t.Fatal(err)
		}
		s.want(docs)
	}

	docs := documents(t, parse(t, "external", "main"), "")
	s.ask(http.MethodPut, "config", `{"Kind":"service-defaults","Name":"main","Protocol":"tcp","MaxInboundConnections":9}`)
	s.want(docs, "service-defaults/main?")
	s.ask(http.MethodPut, "config", `{"Kind":"service-resolver","Name":"main-ro","Meta":{"created-by":"pgsteer consul-init"},"Redirect":{"Service":"main","ServiceSubset":"sync"}}`)
	s.want(docs, "service-defaults/main?", "service-resolver/main-ro")

	before := s.compare(docs)
	s.ask(http.MethodPut, "config", `{"Kind":"service-defaults","Name":"main","Protocol":"tcp"}`)
	if err := before[0].Write(t.Context(), s.client); !errors.Is(err, ErrChanged) {
		t.Errorf("a change since the comparison: %v", err)
	}
	if err := bring(t.Context(), s.client, docs); err != nil {
		t.Fatal(err)
	}
	s.want(docs)
	s.queries(docs)
}

// queries changes one prepared query, and then whose it is.
func (s *server) queries(docs []Document) {
	s.t.Helper()
	all := s.compare(docs)
	i := slices.IndexFunc(all, func(c Change) bool { return c.ID() == "prepared-query/main-ro" })
	path := "query/" + all[i].id
	s.ask(http.MethodPut, path, `{"Name":"main-ro","Service":{"Service":"main","Tags":["sync"]}}`)
	s.want(docs, "prepared-query/main-ro")
	s.ask(http.MethodPut, path, `{"Name":"main-ro","Service":{"Service":"other"}}`)
	s.want(docs, "prepared-query/main-ro?")
	if err := bring(s.t.Context(), s.client, docs); err != nil {
		s.t.Fatal(err)
	}
	s.want(docs)
	if n := strings.Count(s.ask(http.MethodGet, "query", ""), `"Name":"main-ro"`); n != 1 {
		s.t.Errorf("there are %d queries main-ro", n)
	}
}

// What is printed for other tools is what Consul's own program takes, and what is
// then compared as equal.
func TestRealPrinted(t *testing.T) {
	s := newServer(t, lab.ConsulOptions{})
	program, err := lab.ConsulProgram()
	if err != nil {
		t.Fatal(err)
	}
	docs := documents(t, parse(t, "external", "main"), "pg-gateway")
	for _, form := range []func(Document) string{Document.Text, func(d Document) string { return string(d.JSON()) }} {
		for _, d := range docs {
			if !d.IsEntry() {
				s.ask(http.MethodPost, "query", form(d))
				continue
			}
			cmd := exec.CommandContext(t.Context(), program, "config", "write", "-http-addr", s.Addr(), "-")
			cmd.Stdin = strings.NewReader(form(d))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("consul config write %s: %v: %s\n%s", d.ID(), err, out, form(d))
			}
		}
		s.want(docs)
		for _, c := range s.compare(docs) {
			if c.id != "" {
				s.ask(http.MethodDelete, "query/"+c.id, "")
			}
		}
	}
}

// Each subset has the instances of its role, those that pass and those with a
// warning, whatever else their meta lacks; a gateway is in each of external ones.
func TestRealSubsets(t *testing.T) {
	s := newServer(t, lab.ConsulOptions{})
	for _, in := range []struct{ id, meta string }{
		{"n1", `"role":"primary"`},
		{"n2", `"role":"replica","sync":"sync"`},
		{"n3", `"role":"replica","sync":"async"`},
		{"n4", `"role":"replica"`},
		{"n5", `"role":"standby-leader"`},
		{"n6", `"role":"unknown"`},
		{"n7", ``},
	} {
		s.ask(http.MethodPut, "agent/service/register", fmt.Sprintf(`{"Name":"main","ID":%q,"Meta":{%s}}`, in.id, in.meta))
	}
	s.ask(http.MethodPut, "agent/service/register", `{"Name":"main","ID":"gw","Kind":"terminating-gateway","Port":8443}`)
	want := map[string]string{
		"primary": "n1", "replica": "n2 n3 n4", "sync": "n2", "async": "n3", "quorum": "", "standby-leader": "n5",
	}
	for mode, more := range map[string]string{"local": "", "external": "gw"} {
		cfg := parse(t, "external", "main")
		cfg.Mesh.Mode = config.MeshMode(mode)
		docs := documents(t, cfg, "")
		resolver := docs[3].entry.(*api.ServiceResolverConfigEntry) //nolint:forcetypeassert // the golden file has it there
		if len(resolver.Subsets) != len(want) {
			t.Errorf("subsets %v", resolver.Subsets)
		}
		for name, subset := range resolver.Subsets {
			if subset.OnlyPassing {
				t.Errorf("subset %s leaves out what serves although it is behind", name)
			}
			var got []string
			var all []struct{ Service struct{ ID string } }
			text := s.ask(http.MethodGet, "health/service/main?filter="+url.QueryEscape(subset.Filter), "")
			if err := json.Unmarshal([]byte(text), &all); err != nil {
				t.Fatal(err)
			}
			for _, in := range all {
				got = append(got, in.Service.ID)
			}
			slices.Sort(got)
			if w := strings.Fields(more + " " + want[name]); !slices.Equal(got, w) {
				t.Errorf("%s: subset %s (%s) has %v, want %v", mode, name, subset.Filter, got, w)
			}
		}
	}
}

func (s *server) want(docs []Document, want ...string) {
	s.t.Helper()
	if got := needed(s.t, s.compare(docs)); !slices.Equal(got, want) {
		s.t.Errorf("differences: %v, want %v", got, want)
	}
}
