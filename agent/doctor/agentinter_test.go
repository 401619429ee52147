package doctor

import (
	"strings"
	"testing"
	"time"
)

// TestSlowPolls: no writer may be lost and back between two polls of a HAProxy whose
// file is written by hand.
func TestSlowPolls(t *testing.T) {
	const clusters = `clusters:
  main: {nodes: {n1: 10.0.0.1:5432}, pools: {primary: {mode: write}, ro: {mode: read}}}
  slow: {nodes: {n1: 10.0.0.2:5432}, policy: {min_down: 5s}}
  quick: {nodes: {n1: 10.0.0.3:5432}, pools: {ro: {mode: read}}, policy: {min_down: 300ms}}
`
	const server = "  server n1 10.0.0.1:5432 agent-check agent-send "
	const main, slow = server + `"main primary n1\n"`, server + `"slow primary n1 10.0.0.2:5432\n"`
	found := func(said, cluster, minDown string) string {
		return said + " is above half of min_down " + minDown + " of cluster " + cluster + ": a poll may miss that the writer was lost, and its sessions stay"
	}
	const unsaid = "without agent-inter HAProxy asks every 2s, which"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"half", "backend b\n" + main + " agent-inter 500\n", nil},
		{"above half", "backend b\n" + main + " agent-inter 501\n", []string{"2: " + found("agent-inter 501", "main", "1s")}},
		{"a unit", "backend b\n" + main + " agent-inter 1s\n", []string{"2: " + found("agent-inter 1s", "main", "1s")}},
		{"a variable", "backend b\n" + main + " agent-inter \"$X\"\n", nil},
		{"another cluster", "backend b\n" + slow + " agent-inter 2500\n", nil},
		{"another cluster, above half", "backend b\n" + slow + " agent-inter 3s\n", []string{"2: " + found("agent-inter 3s", "slow", "5s")}},
		{"a read pool", "backend b\n" + server + "\"main ro n1\\n\" agent-inter 3s\n", nil},
		{"an unknown cluster", "backend b\n" + server + "\"x primary n1\\n\" agent-inter 3s\n", []string{"2: " + found("agent-inter 3s", "main", "1s")}},
		{"a port of its own", "backend b\n  server n1 10.0.0.1:5432 agent-check agent-port 7441 agent-inter 3s\n", []string{"2: " + found("agent-inter 3s", "main", "1s")}},
		{"none", "backend b\n" + main + " inter 300\n", []string{"2: " + found(unsaid, "main", "1s")}},
		{"none, and that suffices", "backend b\n" + slow + "\n", nil},
		{"no agent-check", "backend b\n  server n1 10.0.0.1:5432 agent-inter 3s\n", nil},
		{"no agent-check here", "backend b\n  default-server agent-check agent-inter 3s\n  server n1 10.0.0.1:5432 no-agent-check\n", nil},
		{
			"default-server, told once", "backend b\n  default-server agent-check agent-inter 3s\n" + main + "\n" + main + "\n" + main + " agent-inter 200\n",
			[]string{"2: " + found("agent-inter 3s", "main", "1s")},
		},
		{"default-server that nobody takes", "backend b\n  default-server agent-inter 3s\n" + main + " agent-inter 200\n", nil},
		{"it ends with its section", "backend b\n  default-server agent-inter 200\nbackend c\n" + main + "\n", []string{"4: " + found(unsaid, "main", "1s")}},
		{"of defaults", "defaults\n  default-server agent-inter 3s\nbackend c\n" + main + "\n", []string{"2: " + found("agent-inter 3s", "main", "1s")}},
		{"of defaults that were replaced", "defaults\n  default-server agent-inter 3s\ndefaults\nbackend c\n" + main + "\n", nil}, // maybe of other defaults by name
		{"server-template", "backend b\n  server-template n 3 db:5432 agent-check agent-send \"main primary n1\\n\" agent-inter 3s\n", []string{"2: " + found("agent-inter 3s", "main", "1s")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t, clusters)
			file := write(t, "haproxy.cfg", tt.text, 0o644)
			o.HAProxyFiles = []string{file}
			var got []string
			for _, row := range of(t, "haproxy-file", o) {
				if row, ok := strings.CutPrefix(row, "WARN "+file+":"); ok && strings.Contains(row, "min_down") {
					got = append(got, row)
				}
			}
			same(t, got, tt.want...)
		})
	}
}

func TestHAProxyTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500": 500 * time.Millisecond, "500us": 500 * time.Microsecond, "2s": 2 * time.Second, "3m": 3 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour,
	} {
		if got, ok := haproxyTime(text); got != want || !ok {
			t.Errorf("%s: %s, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "s", "1.5s", "-1", "1s500ms", "${X}", "999999999d"} {
		if got, ok := haproxyTime(text); ok {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}
