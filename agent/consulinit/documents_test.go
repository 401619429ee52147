package consulinit

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/config"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func load(t *testing.T, file string) *config.Config {
	t.Helper()
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// parse reads a configuration of clusters with one node each.
func parse(t *testing.T, mesh string, clusters ...string) *config.Config {
	t.Helper()
	text := "mesh: {mode: " + mesh + "}\nclusters:\n"
	for i, name := range clusters {
		text += fmt.Sprintf("  %s: {nodes: {n1: \"10.0.%d.1:5432\"}}\n", name, i)
	}
	file := filepath.Join(t.TempDir(), "pgsteer.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, file)
}

func documents(t *testing.T, cfg *config.Config, gateway string) []Document {
	t.Helper()
	docs, err := Documents(cfg, Options{Gateway: gateway})
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// All that a configuration gives, to the byte, and in each form.
func TestGolden(t *testing.T) {
	for name, gateway := range map[string]string{"local": "", "external": "pg-gateway"} {
		t.Run(name, func(t *testing.T) {
			cfg := load(t, "testdata/"+name+".yaml")
			var out bytes.Buffer
			for _, p := range Policies(cfg) {
				fmt.Fprintf(&out, "# policy %s: %s\n%s\n", p.Job, p.Doc, p.Rules())
			}
			for _, d := range documents(t, cfg, gateway) {
				fmt.Fprintf(&out, "# %s\n%s\n", d.ID(), d.Text())
			}
			golden := "testdata/" + name + ".golden"
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), out.String()); d != "" {
				t.Errorf("-want +got; go test -update writes it anew\n%s", d)
			}
		})
	}
}

// Names that Consul or DNS would mix up are refused before anything is asked.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		cfg     *config.Config
		gateway string
		want    string
	}{
		"nothing published":     {parse(t, "off", "main"), "", "no cluster is published"},
		"a name that is taken":  {parse(t, "external", "main", "main-ro"), "", "clusters main and main-ro would both have the name main-ro"},
		"a name that is long":   {parse(t, "external", strings.Repeat("a", 61)), "", "cannot be asked for by DNS"},
		"a gateway to sidecars": {load(t, "testdata/local.yaml"), "gw", "a terminating gateway serves what has no sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Documents(c.cfg, Options{Gateway: c.gateway})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
