package runtimeapi

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/haproxycli/haproxytest"
)

func recorded(t *testing.T, version, to string) string {
	t.Helper()
	text, ok := haproxytest.Answer(t, version, to)
	if !ok {
		t.Fatalf("no answer of %s to %s", version, to)
	}
	return strings.TrimRight(text, "\n") // as Ask returns it
}

// Servers are read by the names of their columns, of which versions have more or less.
func TestServersOfEveryVersion(t *testing.T) {
	want := map[haproxycfg.Ref]running{
		{Backend: "be_main_primary", Server: "n1"}: {address: netip.MustParseAddrPort("10.0.0.1:5432")},
		{Backend: "be_main_primary", Server: "n2"}: {address: netip.MustParseAddrPort("[2001:db8::2]:5432"), maintenance: true, agentOff: true},
	}
	for _, version := range haproxytest.Versions(t) {
		got, err := parseState(recorded(t, version, "show servers state"))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(running{}), cmpopts.EquateComparable(netip.AddrPort{})); err != nil || diff != "" {
			t.Errorf("%s: %v %s", version, err, diff)
		}
		if _, err := parseState(recorded(t, version, "show info")); err == nil {
			t.Errorf("%s: the answer to another question counts as a list of servers", version)
		}
		if means := explain(recorded(t, version, "shutdown sessions server, old worker")); !strings.Contains(means, "about to end") {
			t.Errorf("%s: a stopped proxy is explained by %q", version, means)
		}
	}
}

// What 2.6 answers to the commands that change servers.
func TestAnswersToChanges(t *testing.T) {
	for answer, means := range map[string]string{
		"set server, no agent-check":  "no agent-check in HAProxy's file",
		"set server, unknown backend": "does not have this backend",
		"set server, unknown server":  "does not have this server",
	} {
		if got := explain(recorded(t, "2.6", answer)); !strings.Contains(got, means) {
			t.Errorf("%s is explained by %q, want %q", answer, got, means)
		}
	}
	if err := refused(recorded(t, "2.6", "master, unknown worker")); err != nil {
		t.Errorf("a worker that ended is trouble: %v", err)
	}
	words := []string{"weight", "100", "tcp-ut", "30s"}
	if i := refusedWord(words, recorded(t, "2.6", "add server, tcp-ut")); i != 2 {
		t.Errorf("2.6 refuses word %d of %q, want tcp-ut", i, words)
	}
}
