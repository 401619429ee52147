package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pgsteer/pgsteer"

// may lists, for each package, the packages of ours that it may import. Sources
// know nothing of sinks, and nothing but the command imports the agent.
var may = map[string][]string{
	"agent/topology":    {},
	"agent/latest":      {},
	"agent/near":        {},
	"agent/engine":      {"agent/topology"},
	"agent/config":      {"agent/topology", "agent/near"},
	"agent/accept":      {},
	"agent/agentcheck":  {"agent/topology", "agent/latest", "agent/accept"},
	"agent/refusal":     {"agent/topology", "agent/latest", "agent/accept"},
	"agent/healthapi":   {"agent/topology", "agent/latest"},
	"agent/haproxycli":  {},
	"agent/haproxycfg":  {},
	"agent/preflight":   {"agent/haproxycfg"},
	"agent/runtimeapi":  {"agent/topology", "agent/latest", "agent/haproxycli", "agent/haproxycfg"},
	"agent/status":      {"agent/topology", "agent/latest", "agent/near"},
	"agent/statefile":   {},
	"agent/pgbouncer":   {"agent/topology", "agent/latest", "agent/statefile"},
	"agent/switchover":  {"agent/topology", "agent/latest"},
	"agent/maintenance": {"agent/topology", "agent/statefile"},
	"agent/drain":       {"agent/topology", "agent/statefile", "agent/maintenance"},
	"agent/admin":       {"agent/topology", "agent/latest", "agent/maintenance", "agent/drain"},
	"agent/systemd":     {},
	"agent/doctor":      {"agent/topology", "agent/config", "agent/haproxycli", "agent/haproxycfg", "agent/preflight", "agent/consulinit", "watchers/consul", "agent/drain", "watchers/pgautofailover"},
	"agent/tap":         {"agent/topology", "agent/config"},
	"agent/record":      {"agent/topology", "agent/config", "agent/simulate", "agent/tap"},
	// What is published goes over the client of the watchers, by their rules.
	"agent/mesh": {"agent/topology", "agent/latest", "watchers", "watchers/consul"},
	// What Consul needs once is of the configuration, and of what is published.
	"agent/consulinit":  {"agent/topology", "agent/config", "agent/mesh", "watchers/consul"},
	"watchers":          {"agent/topology"},
	"watchers/consul":   {"agent/topology", "watchers"},
	"watchers/postgres": {"agent/topology", "watchers"},
	"watchers/file":     {"agent/topology", "watchers"},
	"watchers/resolve":  {"agent/topology", "watchers"},
	// Names are made legal in one way; the session to the monitor is one of a prober's kind.
	"watchers/pgautofailover": {"agent/topology", "watchers", "watchers/consul", "watchers/postgres"},
	// The bodies of /config and /history are the values of Patroni's keys.
	"watchers/patroni": {"agent/topology", "watchers", "watchers/consul"},
	// Fakes for tests.
	"watchers/consultest":          {"agent/topology"},
	"watchers/pgtest":              {"agent/topology"},
	"watchers/patronitest":         {},
	"agent/haproxycli/haproxytest": {},
	"agent/systemd/bustest":        {},
	"xds/resources":                {"agent/topology"},
	"xds":                          {"agent/topology", "agent/latest", "xds/resources"},
	"templates/render":             {"agent/topology", "agent/near"},
	"templates/builtin":            {},
	"templates/apply":              {"agent/topology", "agent/latest", "agent/haproxycli", "agent/haproxycfg", "agent/preflight", "templates/render"},
	"internal/logtest":             {},
	"internal/lab":                 {},
	"internal/lab/labtest": {
		"internal/lab",
	},
	"internal/e2e":   {}, // tests alone
	"internal/rules": {},
	// Wiring.
	"agent": {
		"agent/topology", "agent/latest", "agent/engine", "agent/config", "agent/agentcheck", "agent/refusal", "agent/healthapi",
		"agent/runtimeapi", "agent/mesh", "agent/status", "agent/statefile", "agent/pgbouncer", "agent/switchover", "agent/maintenance", "agent/drain", "agent/admin", "agent/systemd", "agent/doctor", "agent/tap", "watchers", "watchers/consul", "watchers/postgres", "watchers/file", "watchers/patroni", "watchers/pgautofailover", "watchers/resolve",
		"xds", "xds/resources", "templates/render", "templates/apply", "templates/builtin",
	},
	"agent/simulate": {
		"agent/topology", "agent/engine", "agent/latest", "agent/config", "agent/agentcheck", "agent/healthapi", "agent/status",
		"watchers/consul", "watchers/pgautofailover", "xds/resources", "templates/render", "templates/builtin",
	},
	"internal/demo": {"agent", "agent/config", "agent/topology", "internal/lab"},
	"cmd/pgsteer": {
		"agent", "agent/admin", "agent/maintenance", "agent/pgbouncer", "agent/switchover", "agent/drain", "agent/config", "agent/consulinit", "agent/doctor", "agent/latest", "agent/record", "agent/simulate", "agent/status", "agent/tap", "agent/topology", "templates/apply", "templates/render", "xds", "internal/demo",
	},
}

// bare packages import nothing but the standard library and ours.
var bare = []string{"agent/topology", "agent/engine", "agent/latest"}

// banned modules must not be linked, with the reason.
var banned = map[string]string{
	"github.com/hashicorp/consul/api/watch": "it loops without end on index 0 and knows no context",
	"github.com/stretchr/testify":           "tests use the standard library and go-cmp",
	"github.com/spf13/viper":                "one strict YAML file is the configuration",
	"github.com/sirupsen/logrus":            "logs are slog's",
	"go.opentelemetry.io/otel":              "tracing is not what this agent needs",
	"gopkg.in/yaml.v3":                      "archived; go.yaml.in/yaml/v4 is used",
}

type goPackage struct {
	ImportPath, Doc string
	Imports, Deps   []string
	GoFiles         []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Doc,Imports,Deps,GoFiles", module+"/...").Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v: %s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var pkgs []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImports(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		seen[name] = true
		allowed, known := may[name]
		if !known {
			t.Errorf("package %s has no row in the table of imports; add one and say what it may import", name)
			continue
		}
		for _, i := range p.Imports {
			ours, is := strings.CutPrefix(i, module+"/")
			if is && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s, which its row does not allow", name, ours)
			}
			if !is && slices.Contains(bare, name) && strings.Contains(strings.Split(i, "/")[0], ".") {
				t.Errorf("%s imports %s; it must need nothing outside the standard library", name, i)
			}
		}
	}
	for name := range may {
		if !seen[name] {
			t.Errorf("the table has a row for %s, which does not exist", name)
		}
	}
}

func TestBannedDependencies(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"/cmd/pgsteer" {
			continue
		}
		for _, d := range p.Deps {
			for b, why := range banned {
				if d == b || strings.HasPrefix(d, b+"/") {
					t.Errorf("the program links %s: %s", d, why)
				}
			}
		}
		return
	}
	t.Fatal("cmd/pgsteer was not listed")
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && len(p.Doc) < 40 {
			t.Errorf("package %s has no comment that says what it holds and guarantees", p.ImportPath)
		}
	}
}
