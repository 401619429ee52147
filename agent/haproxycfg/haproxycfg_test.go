package haproxycfg

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const sample = `global
  stats socket /run/x
defaults
  mode tcp
  default-server check inter 2s
backend be_main_primary
  default-server weight 100
  server n1 10.0.0.1:5432 agent-send "main primary n1\n" # the first
  server n2 [2001:db8::2]:5432 agent-send 'it'"'"'s n2'
backend guard
  server g 127.0.0.1:9 no-check
peers p
  server x 10.0.0.9:1000
backend names
  server d db.example:5432
`

func parse(t *testing.T, text string) File {
	t.Helper()
	f, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParse(t *testing.T) {
	f := parse(t, sample)
	defaults := []string{"check", "inter", "2s"}
	want := map[Ref]Server{
		{"be_main_primary", "n1"}: {netip.MustParseAddrPort("10.0.0.1:5432"), append(slices.Clone(defaults), "weight", "100", "agent-send", "main primary n1\n")},
		{"be_main_primary", "n2"}: {netip.MustParseAddrPort("[2001:db8::2]:5432"), append(slices.Clone(defaults), "weight", "100", "agent-send", "it's n2")},
		{"guard", "g"}:            {netip.MustParseAddrPort("127.0.0.1:9"), append(slices.Clone(defaults), "no-check")},
	}
	if diff := cmp.Diff(want, f.Servers, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}
	if !maps.Equal(f.Others, map[Ref]bool{{"names", "d"}: true}) {
		t.Errorf("others %v", f.Others)
	}
	for _, bad := range []string{
		`backend b` + "\n" + `  server n1 10.0.0.1:1 agent-send "$HOME"`, "backend b\n  server n1", "backend b\n  server n1 10.0.0.1:1 'x",
		"backend b\n  server n1 10.0.0.1:1 a\\x41", "backend b\n  server n1 1.1.1.1:1\n  server n1 1.1.1.1:2", "backend b\n  server-template t 3 10.0.0.1:1", ".if x\nbackend b\n.endif",
	} {
		if f, err := Parse([]byte("defaults\n" + bad + "\n")); err == nil {
			t.Errorf("%q is understood as %v", bad, f.Servers)
		}
	}
	// The defaults of these stand elsewhere.
	for _, text := range []string{"backend b\n  server n1 10.0.0.1:1\n", "defaults\nbackend b from x\n  server n1 10.0.0.1:1\n"} {
		if f := parse(t, text); len(f.Servers) > 0 {
			t.Errorf("%q: %v", text, f.Servers)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"nothing", "", "", "-[] ~[] +[]"},
		{"a new address", "10.0.0.1:5432", "10.0.0.7:5432", "-[] ~[be_main_primary/n1] +[]"},
		{"a new node", "  server n2", "  server n3 10.0.0.3:5432\n  server n2", "-[] ~[] +[be_main_primary/n3]"},
		{"another node", "server n2", "server n4", "-[be_main_primary/n2] ~[] +[be_main_primary/n4]"},
		{"another order", "  server n1 10.0.0.1:5432 agent-send \"main primary n1\\n\" # the first\n", "", "-[be_main_primary/n1] ~[] +[]"},
		{"a comment of a server", "# the first", "# a node", "-[] ~[] +[]"},
		{"settings of a server", "primary n1", "primary x", "error: settings"},
		{"its defaults", "weight 100", "weight 50", "error: more"},
		{"the defaults of all", "inter 2s", "inter 3s", "error: more"},
		{"a name instead of an address", "db.example", "db2.example", "error: more"},
		{"a peer", "10.0.0.9", "10.0.0.8", "error: more"},
		{"a backend", "backend guard", "backend other", "error: more"},
		{"a comment", "mode tcp", "mode tcp # x", "error: more"},
	} {
		d, err := Compare(parse(t, sample), parse(t, strings.Replace(sample, c.old, c.new, 1)))
		got := "error: "
		if err == nil {
			got = fmt.Sprintf("-%v ~%v +%v", InOrder(d.Remove), InOrder(d.Move), InOrder(d.Add))
		} else {
			got += strings.Split(err.Error(), " ")[0]
			got = strings.Replace(got, "the", "settings", 1)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, err)
		}
	}
}

// What an agent check sends may name the server's address, and so changes with it. By
// itself it is a setting.
func TestAgentSendMovesWithTheAddress(t *testing.T) {
	base := "defaults\nbackend b\n  default-server agent-send none\n  server n1 10.0.0.1:5432 agent-send \"main primary n1 10.0.0.1:5432\\n\" weight 5\n"
	before := parse(t, base)
	for _, c := range []struct {
		name, old, new string
		moves          bool
	}{
		{"with the address", "10.0.0.1", "10.0.0.7", true},
		{"the address alone", "n1 10.0.0.1:5432 agent", "n1 10.0.0.7:5432 agent", true},
		{"the words alone", "primary n1 10.0.0.1", "primary n1 10.0.0.7", false},
		{"and another setting", "10.0.0.1:5432 agent-send \"main primary n1 10.0.0.1:5432\\n\" weight 5", "10.0.0.7:5432 agent-send \"main primary n1 10.0.0.7:5432\\n\" weight 6", false},
		{"and no words any more", "10.0.0.1:5432 agent-send \"main primary n1 10.0.0.1:5432\\n\"", "10.0.0.7:5432", false},
	} {
		after := parse(t, strings.ReplaceAll(base, c.old, c.new))
		d, err := Compare(before, after)
		if (err == nil && len(d.Move) == 1) != c.moves {
			t.Errorf("%s: %+v, %v", c.name, d, err)
		}
	}
	if send, ok := before.Servers[Ref{"b", "n1"}].AgentSend(); !ok || send != "main primary n1 10.0.0.1:5432\n" {
		t.Errorf("the last agent-send counts: %q", send)
	}
	if send, ok := (Server{Words: []string{"check"}}).AgentSend(); ok {
		t.Errorf("no agent-send: %q", send)
	}
}
