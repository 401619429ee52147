package resources

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml "go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pgsteer/pgsteer/agent/topology"
)

var update = flag.Bool("update", false, "write the expected files anew and delete those without a case")

// goldenCase is one testdata/*.in.yaml.
type goldenCase struct {
	Listen   map[string]topology.Address `json:"listen"`
	Standing map[string]string           `json:"standing"`
	Sessions map[string]Sessions         `json:"sessions"`
	Check    topology.Address            `json:"check"`
	Leaving  map[string][]Host           `json:"leaving"`
	TLS      ServerTLS                   `json:"server_tls"`
	Refuse   map[string]topology.Address `json:"refuse"`
	APIs     bool                        `json:"apis"` // show them
	Snapshot topology.Snapshot           `json:"snapshot"`
}

func (c goldenCase) settings() Settings {
	return Settings{
		Sessions: func(cluster, pool string) Sessions { return c.Sessions[Name(cluster, pool)] },
		Check:    Check{Address: c.Check}, ServerTLS: c.TLS,
		Refuse:  func(cluster, pool string) topology.Address { return c.Refuse[Name(cluster, pool)] },
		Leaving: func(cluster, pool string) []Host { return c.Leaving[Name(cluster, pool)] },
		Listen: func(cluster, pool string) (topology.Address, bool) {
			a, ok := c.Listen[Name(cluster, pool)]
			return a, ok
		},
		Standing: func(cluster, pool string) (string, bool) {
			w, ok := c.Standing[Name(cluster, pool)]
			return w, ok
		},
	}
}

// TestGolden builds every testdata/NAME.in.yaml and compares with NAME.out.yaml.
func TestGolden(t *testing.T) {
	ins, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(ins) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	outs := make(map[string]bool)
	for _, in := range ins {
		out := strings.TrimSuffix(in, ".in.yaml") + ".out.yaml"
		outs[out] = true
		t.Run(filepath.Base(in), func(t *testing.T) { golden(t, in, out) })
	}
	for _, out := range orphans(t, outs) {
		if !*update {
			t.Errorf("%s belongs to no case; run go test ./xds/resources -update", out)
		} else if err := os.Remove(out); err != nil {
			t.Error(err)
		}
	}
}

func golden(t *testing.T, in, out string) {
	t.Helper()
	c := readCase(t, in)
	set, err := Build(&c.Snapshot, c.settings())
	if err != nil {
		t.Fatal(err)
	}
	if !c.APIs {
		set.APIs = nil
	}
	got := render(t, set)
	if *update {
		if err := os.WriteFile(out, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; if that is meant, run go test ./xds/resources -update (-want +got):\n%s", out, diff)
	}
}

func orphans(t *testing.T, outs map[string]bool) []string {
	t.Helper()
	all, err := filepath.Glob("testdata/*.out.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var lost []string
	for _, out := range all {
		if !outs[out] {
			lost = append(lost, out)
		}
	}
	return lost
}

func read(t *testing.T, file string) (*topology.Snapshot, Settings) {
	t.Helper()
	c := readCase(t, file)
	return &c.Snapshot, c.settings()
}

func readCase(t *testing.T, file string) goldenCase {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	b, err = json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var c goldenCase
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// render writes a set as YAML, in the field names of Envoy's documentation.
func render(t *testing.T, set Set) []byte {
	t.Helper()
	tree := map[string]any{
		"clusters": trees(t, set.Clusters), "endpoints": trees(t, set.Endpoints), "listeners": trees(t, set.Listeners),
	}
	for _, e := range set.Endpoints {
		for zone, a := range e.Zones {
			tree["endpoints in zone "+zone+" of "+e.GetClusterName()] = trees(t, []proto.Message{a})
		}
	}
	for _, api := range set.APIs {
		tree["api "+api.Listener.GetName()] = trees(t, []proto.Message{api.Cluster, api.Endpoints, api.Listener})
	}
	if set.Withheld != nil {
		tree["withheld"] = set.Withheld
	}
	if set.Warnings != nil {
		tree["warnings"] = set.Warnings
	}
	b, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func trees[M proto.Message](t *testing.T, all []M) []any {
	t.Helper()
	list := []any{}
	for _, m := range all {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(b, &tree); err != nil {
			t.Fatal(err)
		}
		list = append(list, tree)
	}
	return list
}
