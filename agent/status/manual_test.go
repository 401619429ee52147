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
decisions at scrape, so series of nodes that are gone are gone. A node that is known has all its series at every scrape, also while
it is down or was never heard: what is not known is ` + "`NaN`" + `, never 0, and a comparison with ` + "`NaN`" + ` is never true. This page is generated
from the code.

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
	b.WriteString("\n## What to alarm on\n\n| when | for | means |\n|---|---|---|\n")
	for _, a := range alarms {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", a.when, a.holds, a.means)
	}
	return b.String()
}

// alarms are what the manual advises to be woken by.
var alarms = []struct{ when, holds, means string }{
	{`max by (cluster) (pgsteer_node_verdict{pool="primary", verdict="up"}) == 0`, "1 m", "The cluster takes no writes through the balancers."},
	{`pgsteer_pool_up_nodes == 0`, "1 m", "A pool takes no new sessions."},
	{`pgsteer_primary_claims > 1`, "–", "Two nodes say they are writable."},
	{`pgsteer_authority_current == 0`, "1 m", "The writer is held by SQL evidence alone, nobody new is admitted."},
	{`pgsteer_authority_paused == 1`, "1 h", "Somebody forgot to resume the cluster manager; nothing fails over."},
	{`pgsteer_writes_stalled == 1`, "–", "The writer's storage hangs."},
	{`pgsteer_writes_blocked == 1`, "–", "Commits wait for a synchronous standby."},
	{`pgsteer_pool_fallback == 1`, "5 m", "Reads go to the primary, or to a replica beyond max_lag, for want of replicas."},
	{`pgsteer_node_up == 0`, "5 m", "A node does not answer; its lag is as last known, see pgsteer_node_lag_age_seconds."},
	{`pgsteer_node_lag_age_seconds > 300`, "–", "A replica's lag has not been measured for so long that its last value says nothing."},
	{`changes(pgsteer_pool_last_change_timestamp_seconds[10m]) > 10`, "–", "A pool does not come to rest."},
	{`pgsteer_node_slots_exhausted == 1`, "1 m", "A server has no free connection slot."},
	{`pgsteer_port_up == 0`, "1 m", "The port that clients use is dead at a node, PgBouncer perhaps."},
	{`pgsteer_node_failure{class="tls"} == 1`, "1 m", "TLS with a node cannot be agreed: a certificate expired, or an unknown CA."},
	{`pgsteer_probe_login_failing == 1`, "5 m", "The probe's password or certificate is outdated: the node's role is unknown as soon as its open session ends."},
	{`pgsteer_probe_privileges_missing == 1`, "5 m", "GRANT pg_monitor TO the probe's role; replication is judged by lag alone."},
	{`pgsteer_source_up{source=~"(consul|catalog)/.*"} == 0`, "1 m", "Consul does not answer this agent."},
	{`pgsteer_sink_ok == 0`, "1 m", "A balancer is not told what is decided."},
	{`pgsteer_sink_present{what="sessions_down"} > 0`, "1 m", "HAProxy has sessions with servers that are down, and they do not end."},
	{`sum by (sink) (pgsteer_sink_present{what="publisher"}) == 0`, "1 m", "No agent publishes a cluster in Consul, where all stays as it was written last."},
	{`pgsteer_config_last_reload_success == 0`, "–", "A changed configuration was refused; the one before it runs."},
	{`pgsteer_decision_valid == 0`, "–", "Decisions do not turn; every answer is that of undecided."},
	{`count by (cluster) (count by (cluster, hash) (pgsteer_decision_info)) > 1`, "1 m", "Agents decide differently."},
}

func reasonsPage() string {
	var b strings.Builder
	b.WriteString(`# Reasons

Every verdict has one or more reasons. The same code stands in ` + "`pgsteer status` and `explain`" + `, in the comment of an agent check,
in the body of an HTTP answer, in the log, and in the label of ` + "`pgsteer_node_reason`" + `. Several causes at once are all listed; the harshest
effect on sessions wins. They stand in the order of the ladder: the first that holds leads. This page is generated from the code.

* **Severity**: *ok* is as it should be, *info* a normal state that keeps a node out, *warn* degraded and still served, *error* means
  that somebody must act.
* **Sessions**: *serve* takes new sessions; *drain* keeps the open ones and takes no new; *kill* ends the open ones; *silent* says nothing,
  so balancers keep what they have; *none* is no reason of a verdict. With * the pool chooses: ` + "`pools.NAME.sessions`" + ` sets *keep* (drain) or
  *end* (kill) for the code. In a write pool a node without the writer role is down also where the table says drain.
* **Keys** bound the reason: those of the cluster's ` + "`policy`" + ` and of the pool. ` + "`pgsteer explain`" + ` prints their values.

| code | severity | sessions | meaning | ends when | keys |
|---|---|---|---|---|---|
`)
	for _, c := range topology.Codes {
		sessions := string(c.Sessions)
		if c.Choice {
			sessions += " *"
		}
		keys := "–"
		if len(c.Keys) > 0 {
			keys = "`" + strings.Join(c.Keys, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", c.Code, c.Severity, sessions, c.Manual, c.Until, keys)
	}
	b.WriteString("\n## What to do\n\n| code | advice |\n|---|---|\n")
	for _, c := range topology.Codes {
		if advice[c.Code] != "" {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.Code, advice[c.Code])
		}
	}
	return b.String()
}
