package consulinit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/mesh"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// task does a job once with a client and returns why it could not.
type task func(ctx context.Context, client *consul.Client, cfg *config.Config) error

// Each job's policy is enough for it, and without any one of its lines the job
// fails, and Consul tells which line that is.
func TestRealRights(t *testing.T) {
	s := newServer(t, lab.ConsulOptions{ACL: true})
	s.ask(http.MethodPut, "kv/service/main/leader", "a")
	s.ask(http.MethodPut, "kv/service/main/members/a", "{}")
	for _, service := range []string{"postgres", "main"} { // main: an instance of somebody else's
		s.ask(http.MethodPut, "catalog/register", fmt.Sprintf(`{"Node":"elsewhere","Address":"192.0.2.7","Service":{"ID":"other-%s","Service":%q,"Port":5432}}`, service, service))
	}
	done := make(map[string]bool)
	for name, file := range map[string]string{"external": "testdata/rights-external.yaml", "local": "testdata/rights-local.yaml"} {
		cfg := load(t, file)
		for _, p := range Policies(cfg) {
			do := map[string]task{JobWatch: watch, JobMaintenance: maintain, JobPublish: publish, JobInit: initialize}[p.Job]
			if do == nil {
				t.Fatalf("job %s is not tried", p.Job)
			}
			if p.Job != JobPublish && done[p.Job] {
				continue // the mode makes no difference
			}
			done[p.Job] = true
			t.Run(name+"/"+p.Job, func(t *testing.T) {
				s.t = t
				s.try(cfg, do, p.Rights, consul.Right{})
				for i, r := range p.Rights {
					s.try(cfg, do, slices.Concat(p.Rights[:i], p.Rights[i+1:]), r)
					if r.Resource == "session_prefix" { // the narrower choice
						r = consul.Right{Resource: "session", Name: s.node(), Access: r.Access}
						s.try(cfg, do, slices.Concat(p.Rights[:i], []consul.Right{r}, p.Rights[i+1:]), consul.Right{})
					}
				}
			})
		}
	}
	s.t = t
	write := consul.Right{Resource: "key_prefix", Name: "a/", Access: consul.Write}
	client := s.with(s.token([]consul.Right{{Resource: "key_prefix", Name: "a/", Access: consul.Read}, {Resource: "key", Name: "a/", Access: consul.Write}}))
	if got, err := client.Lacking(t.Context(), []consul.Right{write}); err != nil || !slices.Equal(got, []consul.Right{write}) {
		t.Errorf("to write one key and read the others is not %v: %v, %v", write, got, err)
	}
}

// node is the name of the server's node.
func (s *server) node() string {
	s.t.Helper()
	var self struct{ Config struct{ NodeName string } }
	if err := json.Unmarshal([]byte(s.ask(http.MethodGet, "agent/self", "")), &self); err != nil {
		s.t.Fatal(err)
	}
	return self.Config.NodeName
}

// try does a job with these rights; lacking is the one that it lacks, if any.
func (s *server) try(cfg *config.Config, do task, rights []consul.Right, lacking consul.Right) {
	s.t.Helper()
	client := s.with(s.token(rights))
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	want := []consul.Right{lacking}
	if lacking == (consul.Right{}) {
		want = nil
	}
	got, err := client.Lacking(ctx, append(slices.Clip(rights), want...))
	if err != nil || !slices.Equal(got, want) {
		s.t.Errorf("Consul says that %v is lacking (%v), want %v", got, err, want)
	}
	s.ask(http.MethodPut, "catalog/deregister", `{"Node":"pgsteer-main"}`) // so that it is to be made
	if cfg.Mesh.Mode == config.MeshLocal {
		// so that there is something to be told
		s.ask(http.MethodPut, "catalog/register", `{"Node":"pgsteer-main","Address":"192.0.2.1","NodeMeta":{"external-node":"true"}}`)
	}
	switch err := do(ctx, client, cfg); {
	case err != nil && want == nil:
		s.t.Errorf("with all rights: %v", err)
	case err == nil && want != nil:
		s.t.Errorf("it works without %v", lacking)
	case ctx.Err() != nil:
		s.t.Errorf("without %v nothing was told within the time: %v", lacking, err)
	case err != nil:
		s.t.Logf("without %v: %v", lacking, err)
	}
}

// token makes one with these rights and returns its file.
func (s *server) token(rights []consul.Right) string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "token")
	name := fmt.Sprintf("p%d", time.Now().UnixNano())
	rules, err := json.Marshal(Policy{Rights: rights}.Rules())
	if err != nil {
		s.t.Fatal(err)
	}
	s.ask(http.MethodPut, "acl/policy", fmt.Sprintf(`{"Name":%q,"Rules":%s}`, name, rules))
	var made struct{ SecretID string }
	if err := json.Unmarshal([]byte(s.ask(http.MethodPut, "acl/token", fmt.Sprintf(`{"Policies":[{"Name":%q}]}`, name))), &made); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(made.SecretID), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// watch runs both sources until each has told something.
func watch(ctx context.Context, client *consul.Client, cfg *config.Config) error {
	now := topology.NewTicker(time.Now)
	keys, err := consul.New(consul.Options{Cluster: "main", Scope: cfg.Clusters[0].Patroni.Scope, Client: client, Now: now})
	if err != nil {
		return err
	}
	catalog, err := consul.NewCatalog(consul.CatalogOptions{Cluster: "shop", Service: "postgres", Client: client, Now: now})
	if err != nil {
		return err
	}
	for _, run := range []func(context.Context, func(topology.Observation)) error{keys.Run, catalog.Run} {
		ctx, stop := context.WithCancel(ctx)
		told := make(chan error, 1)
		err := run(ctx, func(o topology.Observation) {
			var err error
			if o.Failure != nil {
				err = errors.New(o.Failure.Text)
			} else if o.Authority == nil && o.Nodes == nil {
				return
			}
			select {
			case told <- err:
			default:
			}
			stop()
		})
		stop()
		select {
		case first := <-told:
			err = first
		default:
			err = errors.Join(err, errors.New("nothing was told"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maintain changes the key and sees the change.
func maintain(ctx context.Context, client *consul.Client, cfg *config.Config) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	value := time.Now().String()
	seen := make(chan error, 1)
	key := consul.NewKey(consul.KeyOptions{
		Client: client, Key: cfg.Maintenance.Key, Now: topology.NewTicker(time.Now),
		Deliver: func(r consul.Result[string]) {
			if r.Failure == nil && r.Value != value {
				return
			}
			var err error
			if r.Failure != nil {
				err = errors.New(r.Failure.Text)
			}
			select {
			case seen <- err:
			default:
			}
		},
	})
	if err := key.Change(ctx, func([]byte) ([]byte, error) { return []byte(value), nil }); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { defer close(done); key.Run(ctx) }()
	defer func() { stop(); <-done }()
	select {
	case err := <-seen:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publish publishes two nodes until they are seen to stand.
func publish(ctx context.Context, client *consul.Client, cfg *config.Config) error {
	var views latest.Map[string, topology.View]
	now := topology.NewTicker(time.Now)
	external := cfg.Mesh.Mode == config.MeshExternal
	p, err := mesh.New(mesh.Options{
		Client: client, Views: &views, Now: now, External: external, ReadEvery: 500 * time.Millisecond,
		Clusters: map[string]mesh.Settings{"main": {
			Service: "main", Node: "n1", Sidecar: cfg.Mesh.Sidecar, TTL: mesh.Never, PrimaryTTL: mesh.Never,
			Tags: []string{fmt.Sprintf("t%d", time.Now().UnixNano())}, // so that there is something to write
		}},
	})
	if err != nil {
		return err
	}
	views.Set("main", picture(now().Mono))
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() { stop(); <-ended }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		switch st := p.Status()[0]; {
		case st.Err != nil && denied.MatchString(st.Err.Error()): // that there is somebody else's instance is told too
			return st.Err
		case st.Writes > 0 && st.Passing == 1:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

var denied = regexp.MustCompile(`403|ACLs`)

// picture is a cluster whose primary is n1.
func picture(now topology.Mono) *topology.View {
	n := topology.Node{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}}
	up := topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: topology.Up, Weight: 100, Reasons: []topology.Reason{{Code: topology.CodeWriter}}}
	return &topology.View{ValidUntil: now.Add(time.Hour), Facts: new(topology.Facts), Snapshot: &topology.Snapshot{
		Cluster: "main", Generation: 1, Urgent: 1, Complete: true, Writer: n.Name, Nodes: []topology.Node{n},
		Pools: []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{up}}},
	}}
}

// initialize writes everything anew.
func initialize(ctx context.Context, client *consul.Client, cfg *config.Config) error {
	docs, err := Documents(cfg, Options{})
	if err != nil {
		return err
	}
	for i := range docs { // another document each time, so that it is written
		switch e := docs[i].entry.(type) {
		case *api.ServiceConfigEntry:
			e.Meta["run"] = fmt.Sprint(time.Now().UnixNano())
		case *api.ServiceResolverConfigEntry:
			e.Meta["run"] = fmt.Sprint(time.Now().UnixNano())
		default:
			docs[i].query.DNS.TTL = time.Duration(time.Now().UnixNano() % 1e9).Truncate(time.Millisecond).String()
		}
	}
	return bring(ctx, client, docs)
}
