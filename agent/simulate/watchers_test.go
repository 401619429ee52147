package simulate

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// seen plays steps over a world of a primary and a standby, and returns what a
// source tells after the first step: "5.075s refused", with the age of the
// question where it is not zero.
func seen(t *testing.T, source, head, steps string) []string {
	t.Helper()
	text := head + `
world:
  kv: {leader: a, config: {ttl: 30, loop_wait: 10, retry_timeout: 10}}
  sql: {a: {recovery: false, tli: 5}, b: {login: ok}}
steps: ` + steps
	s, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	from := s.start.Mono.Add(s.steps[0].at)
	var out []string
	_, err = s.run(func(o topology.Observation) {
		if o.Source.String() == source && o.At.Mono >= from {
			out = append(out, line(o, s.start.Mono))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func line(o topology.Observation, start topology.Mono) string {
	what := "keys"
	switch {
	case o.Failure != nil:
		what = strings.TrimSpace(string(o.Failure.Asked) + " " + string(o.Failure.Class))
		if o.Failure.Port != 0 {
			what += fmt.Sprint(" ", o.Failure.Port)
		}
	case o.Probe != nil:
		what = string(o.Probe.Kind)
	case o.Port != nil:
		what = fmt.Sprint("port ", o.Port.Port)
	}
	if age := o.At.Mono.Sub(o.AskedAt.Mono); age != 0 {
		what += fmt.Sprint(" after ", age)
	}
	return fmt.Sprint(o.At.Mono.Sub(start), " ", what)
}

const (
	head = "cluster: {authority: patroni}\n"
	port = "cluster: {authority: patroni, postgres: {write_probe: x.y}, pools: {primary: {mode: write, port: 6432}}}\n"
)

var paces = []struct {
	name, source, head, steps string
	want                      []string
}{
	{
		"every interval, and a login every five seconds", "postgres/b", head, "[{at: 5s}, {at: 7s}, {at: 10s}]",
		[]string{"5s full", "5s login", "6s full", "7s full", "8s full", "9s full", "10s full", "10s login"},
	},
	{
		"a refusal is confirmed, then it goes on, fast in a burst", "postgres/b", head, "[{at: 5100ms, sql: {b: refused}}, {at: 5300ms}]",
		[]string{"5.1s full session_lost", "5.1s full refused", "5.175s full refused", "5.275s full refused"},
	},
	{
		"a quiet change is found in its own time", "postgres/b", head, "[{at: 5100ms, quiet: true, sql: {b: refused}}, {at: 6100ms}]",
		[]string{"6s full session_lost", "6s full refused", "6.075s full refused"},
	},
	{
		"a hung node", "postgres/b", head, "[{at: 5100ms, sql: {b: timeout}}, {at: 7s}]",
		[]string{"5.9s full timeout after 800ms", "6.9s full timeout after 800ms"},
	},
	{
		"an answer while the last question hangs", "postgres/b", head, "[{at: 5100ms, sql: {b: timeout}}, {at: 5200ms, sql: {b: ok}}, {at: 5300ms}]",
		[]string{"5.2s full"},
	},
	{
		"a server that starts", "postgres/b", head, "[{at: 5100ms, sql: {b: 57P03}}, {at: 10s}]",
		[]string{"5.1s full starting", "7.1s full starting", "9.1s full starting"},
	},
	{
		"a server that is none", "postgres/b", head, "[{at: 5100ms, sql: {b: 42P01}}, {at: 16s}]",
		[]string{"5.1s full protocol", "10.1s full protocol", "15.1s full protocol"},
	},
	{
		"a server that refuses our login", "postgres/b", head, "[{at: 5100ms, sql: {b: 28P01}}, {at: 10s}]",
		[]string{"5.1s full auth", "6.1s full auth", "8.1s full auth"},
	},
	{
		"a burst after a hint", "postgres/b", head, "[{at: 5100ms, kv: {leader: b}}, {at: 5150ms}]",
		[]string{"5.1s role", "5.11s role", "5.12s role", "5.13s role", "5.14s role", "5.15s role"},
	},
	{
		"logins that hang", "postgres/b", head, "[{at: 5100ms, sql: {b: {login: hangs}}}, {at: 9999ms}]",
		[]string{
			"5.1s full", "6.1s full", "7.1s full", "7.1s login timeout after 2s", "8.1s full", "9.1s full", "9.1s login timeout after 2s",
		},
	},
	{
		"Patroni's keys", "consul/main", head, "[{at: 5s}, {at: 12s, kv: {leader: a}}, {at: 13s, quiet: true, kv: {sync: {}}}, {at: 30s}]",
		[]string{"10s keys", "12s keys", "22s keys"},
	},
	{
		"a leader that goes is found at once, and asked for again", "consul/main", head, "[{at: 5s, quiet: true, kv: {leader: null}}, {at: 6400ms}]",
		[]string{"5s keys", "5s keys", "5.5s keys", "6s keys"},
	},
	{
		"Consul refuses", "consul/main", head, "[{at: 5s, consul: refused}, {at: 11s}, {at: 12s, consul: ok}, {at: 13s}]",
		[]string{"5s refused", "8.1s refused", "11.3s refused", "12s keys"},
	},
	{
		"Consul hangs", "consul/main", head, "[{at: 5s, consul: timeout}, {at: 12s}]",
		[]string{"8s timeout after 3s", "11.1s timeout after 3s"},
	},
	{
		"a port and a write", "postgres/a", port, "[{at: 5100ms, sql: {a: {ports: {6432: refused}, write: hangs}}}, {at: 7s}, {at: 9500ms}]",
		[]string{
			"5.1s full", "5.1s port refused 6432", "5.175s port refused 6432", "6.1s full", "6.175s port refused 6432", "7.1s full",
			"7.1s write timeout after 2s", "7.175s port refused 6432", "8.1s full", "8.175s port refused 6432", "9.1s full", "9.175s port refused 6432",
		},
	},
	{
		"the first probe", "postgres/a", head + "probing: {offset: 250ms, interval: 2s}\n", "[{at: 0s}, {at: 269ms}]",
		[]string{"250ms login", "250ms full", "260ms role"},
	},
	{
		"another interval and phase", "postgres/a", head + "probing: {offset: 250ms, interval: 2s}\n", "[{at: 7s}, {at: 11s}]",
		[]string{"8.25s full", "10.25s full"},
	},
	{
		"a process that stands still", "postgres/b", head, "[{at: 5500ms, agent: {stop: 2s}}, {at: 8s}]",
		[]string{"7.5s full"},
	},
}

// TestPaces: the played watchers ask and fail at the times of the real ones.
func TestPaces(t *testing.T) {
	for _, tt := range paces {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, seen(t, tt.source, tt.head, tt.steps)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// TestReplay: the record of a run, played again, gives the same table.
func TestReplay(t *testing.T) {
	for _, name := range []string{"switchover", "replicas", "no-authority", "ports", "consul"} {
		t.Run(name, func(t *testing.T) {
			s, err := Load("testdata/good/" + name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			rec := Recording{Cluster: s.cluster, Zone: s.zone, Start: s.start}
			first, err := s.run(func(o topology.Observation) {
				rec.Rounds = append(rec.Rounds, Round{At: o.At, Observations: []topology.Observation{o}})
			})
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := EncodeScenario(&b, rec); err != nil {
				t.Fatal(err)
			}
			again, err := Parse("record.yaml", b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			second, err := again.Run()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(decisions(first), decisions(second)); d != "" {
				t.Errorf("(-played +replayed)\n%s", d)
			}
		})
	}
}

// decisions are a result's lines without the notes of its steps.
func decisions(r *Result) []Event {
	var out []Event
	for _, e := range r.Events {
		if e.Pool != "" {
			out = append(out, e)
		}
	}
	return out
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"up 100%", "up 100%", true},
		{"up 100%", "up 100% ", false},
		{"", "", true},
		{"", "x", false},
		{"*", "", true},
		{"up*", "up 0% #x", true},
		{"*lag*", "up 0% #lag 5MB", true},
		{"*lag*MB", "up 0% #lag 5MB", true},
		{"*MB*lag", "up 0% #lag 5MB", false},
		{"ab*ba", "aba", false},
	} {
		if got := matches(tt.pattern, tt.s); got != tt.want {
			t.Errorf("matches(%q, %q) is %t", tt.pattern, tt.s, got)
		}
	}
}

// TestLongRun: five minutes of a cluster in doubt take no noticeable time.
func TestLongRun(t *testing.T) {
	const text = `
cluster: {authority: patroni}
world: {kv: {leader: a}, sql: {a: {recovery: false}, b: {}, c: {}}}
steps: [{at: 10s, sql: {a: timeout}}, {at: 60s, kv: {leader: null}}, {at: 5m, expect: {writer: none}}]
`
	s, err := Parse("long.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	if limit := int(5 * time.Minute / (50 * time.Millisecond)); r.Decisions > limit || len(r.Failures) > 0 {
		t.Errorf("%d decisions, want at most %d\n%s", r.Decisions, limit, table(t, r))
	}
}
