package status

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMetrics(t *testing.T) {
	for _, name := range []string{"drain"} {
		reg := prometheus.NewRegistry()
		reg.MustRegister(&collector{s: worlds[name]().server()})
		path := "testdata/metrics-" + name + ".txt"
		if *update {
			_, body := get(worlds[name]().server(), "/metrics")
			var b strings.Builder
			for line := range strings.Lines(body) {
				if strings.Contains(line, "pgsteer_") {
					b.WriteString(line)
				}
			}
			golden(t, "metrics-"+name+".txt", b.String())
		}
		want, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = want.Close() }()
		if err := testutil.GatherAndCompare(reg, want); err != nil {
			t.Error(err)
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	for name, w := range worlds {
		reg := prometheus.NewPedanticRegistry() // wants every series described, and none twice
		reg.MustRegister(&collector{s: w().server()})
		problems, err := testutil.GatherAndLint(reg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
	}
}

// TestEveryMetricIsSeen: a metric that no typical state has is dead, or forgotten.
func TestEveryMetricIsSeen(t *testing.T) {
	seen := make(map[string]bool)
	for _, w := range worlds {
		reg := prometheus.NewRegistry()
		reg.MustRegister(&collector{s: w().server()})
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			seen[f.GetName()] = true
		}
	}
	for _, m := range metrics {
		if !seen[m.name] {
			t.Errorf("no state has %s", m.name)
		}
	}
	if len(seen) != len(metrics) {
		t.Errorf("%d metrics are seen, %d are listed", len(seen), len(metrics))
	}
}

// TestManual holds the generated pages of the manual.
func TestManual(t *testing.T) {
	page(t, "metrics.md", metricsPage())
	page(t, "reasons.md", reasonsPage())
}

func page(t *testing.T, name, want string) {
	t.Helper()
	path := "../../docs/" + name
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("docs/%s differs from the code (-code +page); go test ./agent/status -update writes it anew\n%s", name, d)
	}
}

func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

Served by ` + "`listen.status`" + ` at ` + "`/metrics`" + `, besides those of the Go runtime and the process. They are computed from the newest
decisions at scrape, so series of nodes that are gone are gone. This page is generated from the code.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, m := range metrics {
		kind := "gauge"
		if strings.HasSuffix(m.name, "_total") {
			kind = "counter"
		}
		labels := "–"
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, kind, labels, m.help)
	}
	b.WriteString(`
## What to alarm on

| when | means |
|---|---|
| ` + "`max by (cluster) (pgsteer_node_verdict{pool=\"primary\", verdict=\"up\"}) == 0`" + ` for 1 m | The cluster takes no writes through the balancers. |
| ` + "`pgsteer_primary_claims > 1`" + ` | Two nodes say they are writable. |
| ` + "`pgsteer_authority_current == 0`" + ` for 1 m | The writer is held by SQL evidence alone, nobody new is admitted. |
| ` + "`pgsteer_pool_fallback == 1`" + ` for 5 m | Reads go to the primary for want of replicas. |
| ` + "`pgsteer_sink_ok == 0`" + ` for 1 m | A balancer is not told what is decided. |
| ` + "`pgsteer_config_last_reload_success == 0`" + ` | A changed configuration was refused; the one before it runs. |
| ` + "`pgsteer_decision_valid == 0`" + ` | Decisions do not turn; every answer is that of undecided. |
| ` + "`count by (cluster) (count by (cluster, hash) (pgsteer_decision_info)) > 1`" + ` for 1 m | Agents decide differently. |
`)
	return b.String()
}

func reasonsPage() string {
	var b strings.Builder
	b.WriteString(`# Reasons

Every verdict has one or more reasons. The same code stands in ` + "`pgsteer status` and `explain`" + `, in the comment of an agent check,
in the body of an HTTP answer, in the log, and in the label of ` + "`pgsteer_node_reason`" + `. Several causes at once are all listed; the harshest
effect on sessions wins. Severity: *ok* is as it should be, *info* a normal state that keeps a node out, *warn* degraded and still
served, *error* means that somebody must act. This page is generated from the code.

| code | severity | meaning |
|---|---|---|
`)
	for _, c := range topology.Codes {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Code, c.Severity, c.Manual)
	}
	return b.String()
}
