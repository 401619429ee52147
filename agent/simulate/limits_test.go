package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// crowd is a scenario of so many nodes that lasts ten seconds.
func crowd(nodes int) []byte {
	var b strings.Builder
	b.WriteString("cluster: {authority: patroni}\nworld:\n  kv: {leader: n0}\n  sql:\n    n0: {recovery: false}\n")
	for i := 1; i < nodes; i++ {
		fmt.Fprintf(&b, "    n%d: {}\n", i)
	}
	b.WriteString("steps: [{at: 10s, expect: {writer: n0}}]\n")
	return []byte(b.String())
}

// TestMostNodes: as many nodes as are allowed are played, one more is a fault.
func TestMostNodes(t *testing.T) {
	s, err := Parse("crowd.yaml", crowd(maxNodes))
	if err != nil {
		t.Fatal(err)
	}
	where := make(map[topology.Address]string)
	for name, at := range s.addresses {
		if other, taken := where[at]; taken {
			t.Fatalf("%s and %s are both at %s", name, other, at)
		}
		where[at] = name
	}
	r, err := s.Run()
	if err != nil || len(r.Failures) > 0 || r.Expectations != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = Parse("crowd.yaml", crowd(maxNodes+1))
	if want := ":1004:5: the file names 1001 nodes; at most 1000 are played"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want …%s", err, want)
	}
}

// TestStopped: a run ends between two moments, and says at which.
func TestStopped(t *testing.T) {
	s, err := Parse("long.yaml", crowd(3))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var last time.Duration
	_, err = s.play(ctx, func(o topology.Observation) {
		if last = o.At.Mono.Sub(s.start.Mono); last == 3*time.Second {
			stop()
		}
	})
	want := "play long.yaml at 3s: stopped; what follows was not played"
	if !errors.Is(err, ErrStopped) || err.Error() != want || last != 3*time.Second {
		t.Errorf("%v after the observations of %s, want %s", err, last, want)
	}
}

// TestTwoWritersWithoutTimeline: both are on the highest one, the first leads.
func TestTwoWritersWithoutTimeline(t *testing.T) {
	no := false
	w := world{servers: map[string]*server{"a": {recovery: &no}, "b": {recovery: &no}, "c": {}}, names: []string{"a", "b", "c"}, lineages: make(map[uint64]lineage)}
	if up, tli := w.upstream("c"), w.timeline("b"); up != "a" || tli != 1 {
		t.Errorf("c follows %q, b is on timeline %d", up, tli)
	}
}

// TestMetricLabels: the metrics that can be expected are those of the manual.
func TestMetricLabels(t *testing.T) {
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(pgsteer_\\w+)` \\| (?:gauge|counter) \\| (.*?) \\|").FindAllStringSubmatch(string(b), -1) {
		if labels := sorted(regexp.MustCompile(`\w+`).FindAllString(row[2], -1)); !strings.HasPrefix(row[1], "pgsteer_sink") && !strings.HasPrefix(row[1], "pgsteer_maintenance") {
			want[row[1]] = strings.Join(labels, " ")
		}
	}
	if d := cmp.Diff(want, metricLabels); d != "" {
		t.Errorf("metricLabels (-docs/metrics.md +code):\n%s", d)
	}
}

// TestAlarmCodes: the alarms that can be expected are those that the rules raise.
func TestAlarmCodes(t *testing.T) {
	rules, err := os.ReadFile("../engine/alarm.go")
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadFile("expect_names.go")
	if err != nil {
		t.Fatal(err)
	}
	found := func(text []byte, pattern string) map[string]bool {
		all := make(map[string]bool)
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all[string(m[1])] = true
		}
		return all
	}
	want := found(rules, `raise\(topology\.(Code\w+)`)
	if got := found(names, `string\(topology\.(Code\w+)\)`); len(want) == 0 || !maps.Equal(want, got) {
		t.Errorf("alarmCodes has %v, the rules raise %v", got, want)
	}
}
