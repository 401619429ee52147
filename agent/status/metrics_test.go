package status

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// scraped are the states whose exposition is held byte by byte.
var scraped = []string{"drain", "ports", "probe"}

func TestMetrics(t *testing.T) {
	for _, name := range scraped {
		var b strings.Builder
		for line := range strings.Lines(scrape(worlds[name]().server())) {
			if strings.Contains(line, "pgsteer_") {
				b.WriteString(line)
			}
		}
		golden(t, "metrics-"+name+".txt", b.String())
	}
}

// scrape is the exposition as Prometheus gets it.
func scrape(s *Server) string {
	_, body := get(s, "/metrics")
	return body
}

// value finds one series in an exposition; NaN and absent are told apart.
func value(t *testing.T, text, series string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no series %s", series)
	return 0
}

// TestNoSeriesIsEverAbsent: whatever state a node is in, it has the same series
// (field report FR-35), labels with its state aside.
func TestNoSeriesIsEverAbsent(t *testing.T) {
	var node, pool, cluster []string
	for _, m := range metrics {
		switch {
		case slices.Contains(m.labels, "node") && m.name != descPort.name:
			node = append(node, m.name)
		case slices.Contains(m.labels, "pool"):
			pool = append(pool, m.name)
		case slices.Contains(m.labels, "cluster") && !strings.HasPrefix(m.name, "pgsteer_authority_") &&
			!slices.Contains([]string{descAlarm.name, descPort.name, descSource.name, descSourceAge.name}, m.name):
			cluster = append(cluster, m.name)
		}
	}
	for name, w := range worlds {
		text := scrape(w().server())
		for _, n := range []string{"n1", "n2", "n3"} {
			wants(t, name, node, families(text, `cluster="main"`, `node="`+n+`"`))
			for _, p := range []string{"primary", "replica"} {
				wants(t, name, []string{descVerdict.name, descReason.name, descWeight.name}, families(text, `cluster="main"`, `node="`+n+`"`, `pool="`+p+`"`))
			}
		}
		wants(t, name, append(pool, descVerdict.name), families(text, `cluster="main"`, `pool="replica"`))
		wants(t, name, cluster, families(text, `cluster="main"`))
	}
	undecided := scrape(worlds["undecided"]().server())
	if value(t, undecided, `pgsteer_decision_valid{cluster="later"}`) != 0 || value(t, undecided, `pgsteer_cluster_complete{cluster="later"}`) != 0 {
		t.Error("a cluster that was not decided yet is valid or complete")
	}
}

// families are the metrics that have a series with all these labels.
func families(text string, labels ...string) map[string]bool {
	out := make(map[string]bool)
lines:
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, "{")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue lines
			}
		}
		out[name] = true
	}
	return out
}

func wants(t *testing.T, world string, want []string, got map[string]bool) {
	t.Helper()
	for _, name := range want {
		if !got[name] {
			t.Errorf("%s: %s is absent; there are %v", world, name, slices.Sorted(maps.Keys(got)))
		}
	}
}

// TestMetricValues reads what each state is seen by.
func TestMetricValues(t *testing.T) {
	for _, c := range []struct {
		world, series string
		want          float64
	}{
		{"up", `pgsteer_node_weight_ratio{cluster="main",node="n2",pool="replica"}`, 1},
		{"up", `pgsteer_node_weight_ratio{cluster="main",node="n2",pool="primary"}`, 0},
		{"degraded", `pgsteer_node_weight_ratio{cluster="main",node="n2",pool="replica"}`, 0.5},
		{"up", `pgsteer_node_failure{class="none",cluster="main",node="n3"}`, 1},
		{"drain", `pgsteer_node_failure{class="timeout",cluster="main",node="n3"}`, 1},
		{"roleless", `pgsteer_node_failure{class="auth",cluster="main",node="n3"}`, 1},
		{"up", `pgsteer_node_lag_bytes{cluster="main",node="n1"}`, math.NaN()},
		{"up", `pgsteer_node_lag_age_seconds{cluster="main",node="n1"}`, math.NaN()},
		{"up", `pgsteer_node_lag_age_seconds{cluster="main",node="n2"}`, 0.3},
		{"drain", `pgsteer_node_lag_bytes{cluster="main",node="n3"}`, 96},
		{"drain", `pgsteer_node_lag_age_seconds{cluster="main",node="n3"}`, 5},
		{"roleless", `pgsteer_node_lag_bytes{cluster="main",node="n2"}`, math.NaN()},
		{"roleless", `pgsteer_node_lag_seconds{cluster="main",node="n2"}`, math.NaN()},
		{"roleless", `pgsteer_node_lag_age_seconds{cluster="main",node="n2"}`, 3600},
		{"roleless", `pgsteer_node_evidence_age_seconds{cluster="main",node="n2"}`, 3600},
		{"up", `pgsteer_node_slots_exhausted{cluster="main",node="n3"}`, 0},
		{"probe", `pgsteer_node_slots_exhausted{cluster="main",node="n3"}`, 1},
		{"probe", `pgsteer_probe_login_failing{cluster="main",node="n1"}`, 1},
		{"probe", `pgsteer_probe_login_failing{cluster="main",node="n2"}`, 0},
		{"drain", `pgsteer_probe_login_failing{cluster="main",node="n3"}`, 0}, // all of it fails, which node_up tells
		{"probe", `pgsteer_probe_privileges_missing{cluster="main",node="n2"}`, 1},
		{"probe", `pgsteer_probe_privileges_missing{cluster="main",node="n1"}`, 0},
		{"degraded", `pgsteer_writes_blocked{cluster="main"}`, 1},
		{"degraded", `pgsteer_writes_stalled{cluster="main"}`, 0},
		{"stalled", `pgsteer_writes_stalled{cluster="main"}`, 1},
		{"degraded", `pgsteer_authority_paused{cluster="main"}`, 1},
		{"stalled", `pgsteer_authority_paused{cluster="main"}`, math.NaN()},
		{"up", `pgsteer_authority_paused{cluster="main"}`, math.NaN()},
		{"lost", `pgsteer_authority_current{cluster="main"}`, 0},
		{"lost", `pgsteer_source_up{cluster="main",source="consul/main"}`, 0},
		{"undecided", `pgsteer_source_age_seconds{cluster="main",source="consul/main"}`, 3600},
		{"stalled", `pgsteer_pool_fallback{cluster="main",pool="replica"}`, 1},
		{"stalled", `pgsteer_pool_up_nodes{cluster="main",pool="primary"}`, 0},
		{"up", `pgsteer_pool_nodes{cluster="main",pool="replica"}`, 3},
		{"returning", `pgsteer_pool_last_change_timestamp_seconds{cluster="main",pool="replica"}`, float64(wall.Unix()) - 1.2},
		{"ports", `pgsteer_port_up{cluster="main",node="n1",port="6432"}`, 1},
		{"ports", `pgsteer_port_up{cluster="main",node="n2",port="6432"}`, 0},
		{"ports", `pgsteer_port_up{cluster="main",node="n3",port="6432"}`, 0}, // not checked yet
	} {
		got := value(t, scrape(worlds[c.world]().server()), c.series)
		if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %s is %v, want %v", c.world, c.series, got, c.want)
		}
	}
}

func TestAPortWithoutCheckHasNoSeries(t *testing.T) {
	w := worlds["ports"]()
	w.policy.Pools[1].PortCheck = topology.PortCheckNone
	if text := scrape(w.server()); strings.Contains(text, `pgsteer_port_up{cluster="main",node="n3"`) {
		t.Error("a port that nobody checks is told to be down")
	}
}

// TestLagIsRemembered: the last known lag stays, and grows old, while it cannot
// be told; a server at another address, and a node that became the primary,
// have none of it.
func TestLagIsRemembered(t *testing.T) {
	const lag, age = `pgsteer_node_lag_bytes{cluster="main",node="n2"}`, `pgsteer_node_lag_age_seconds{cluster="main",node="n2"}`
	w := worlds["drain"]()
	s := w.server()
	read := func(name string) (bytes, seconds float64) {
		text := scrape(s)
		return value(t, text, strings.Replace(lag, "n2", name, 1)), value(t, text, strings.Replace(age, "n2", name, 1))
	}
	if b, a := read("n2"); b != 200<<20 || a != 0.3 {
		t.Fatalf("a known lag is %v, %v s old", b, a)
	}
	unknown := func(s *topology.Snapshot, f *topology.Facts) {
		for _, n := range []string{"n2", "n3"} {
			change(f, n, func(n *topology.NodeFacts) { n.Lag = topology.Lag{} })
		}
	}
	w.views.Set("main", view("main", unknown))
	w.at.Wall = w.at.Wall.Add(time.Minute)
	if b, a := read("n2"); b != 200<<20 || math.Abs(a-60.3) > 1e-6 {
		t.Errorf("a minute later it is %v, %v s old", b, a)
	}
	w.views.Set("main", view("main", func(s *topology.Snapshot, f *topology.Facts) {
		unknown(s, f)
		s.Nodes[1].Address.Host = "10.0.0.22"
		f.Nodes["n3"] = answering(true)
	}))
	if b, a := read("n2"); !math.IsNaN(b) || a != 3660 {
		t.Errorf("at another address it is %v, %v s old", b, a)
	}
	if b, a := read("n3"); !math.IsNaN(b) || !math.IsNaN(a) {
		t.Errorf("a primary's is %v, %v s old", b, a)
	}
}

// TestPrimaryClaims: the word of a server counts while its sessions could write.
func TestPrimaryClaims(t *testing.T) {
	second := func(edit func(*topology.NodeFacts)) *world {
		return newWorld(view("main", func(_ *topology.Snapshot, f *topology.Facts) {
			f.Claims = []string{"n1", "n2"}
			f.Nodes["n2"] = answering(true)
			change(f, "n2", edit)
		}))
	}
	for _, c := range []struct {
		name string
		edit func(*topology.NodeFacts)
		want float64
	}{
		{"two", func(*topology.NodeFacts) {}, 2},
		{"silent, within kill_after", func(n *topology.NodeFacts) { *n = failing(*n, topology.FailTimeout, "no answer") }, 2},
		{"silent beyond kill_after", func(n *topology.NodeFacts) { n.RoleAt = before(11 * time.Second) }, 1},
		{"refused", func(n *topology.NodeFacts) { *n = failing(*n, topology.FailRefused, "connection refused") }, 1},
		{"another cluster's server", func(n *topology.NodeFacts) { n.Probe.SystemID = 8 }, 1},
	} {
		if got := value(t, scrape(second(c.edit).server()), `pgsteer_primary_claims{cluster="main"}`); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestReasonsAreOfTheClosedList: no label value comes from outside.
func TestReasonsAreOfTheClosedList(t *testing.T) {
	var known []string
	for _, c := range topology.Codes {
		known = append(known, string(c.Code))
	}
	label := regexp.MustCompile(`reason="([^"]*)"`)
	for name, w := range worlds {
		for _, m := range label.FindAllStringSubmatch(scrape(w().server()), -1) {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s: reason %q is in no list", name, m[1])
			}
		}
	}
}

// TestAdvisedAlarms: the manual names metrics that there are.
func TestAdvisedAlarms(t *testing.T) {
	var known, unknown []string
	for _, m := range metrics {
		known = append(known, m.name)
	}
	for _, a := range alarms {
		for _, name := range regexp.MustCompile(`pgsteer_[a-z_]+`).FindAllString(a.when+a.means, -1) {
			if !slices.Contains(known, name) {
				unknown = append(unknown, name)
			}
		}
	}
	if d := cmp.Diff([]string(nil), unknown); d != "" {
		t.Error(d)
	}
}
