package agentcheck

import (
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The weights and reasons of wide pools, as HAProxy reads them: N% is of the
// initial weight of 100, so 1 % still serves, and only a drain is 0 %.
func TestNodeLine(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict topology.Verdict
		weight  int
		code    topology.Code
		text    string
		want    string
	}{
		{"ramping, as it should be", topology.Up, 25, topology.CodeRamping, "25 % of slow_start", "up 25%\n"},
		{"lag takes weight", topology.Up, 10, topology.CodeReplica, "lag 63MB", "up 10%\n"},
		{"primary as fallback", topology.Up, 30, topology.CodeFallback, "no replica is eligible", "up 30% #no replica is eligible\n"},
		{"stale as fallback", topology.Up, 50, topology.CodeFallbackStale, "lag 70MB > 64MB", "up 50% #lag 70MB > 64MB\n"},
		{"least weight", topology.Up, 1, topology.CodeReplica, "", "up 1%\n"},
		{"no weight is no drain", topology.Up, 0, topology.CodeReplica, "", "up 1%\n"},
		{"more than all", topology.Up, 250, topology.CodeReplica, "", "up 100%\n"},
		{"not selected", topology.Drain, 100, topology.CodeNotSelected, "not in pool reports", "up 0% #not in pool reports\n"},
		{"port", topology.Down, 100, topology.CodePort, "port 6432: refused", "down #port 6432: refused\n"},
		{"port not checked yet", topology.Undecided, 100, topology.CodePort, "port 6432 not checked yet", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := verdict("n1", tt.verdict, tt.code, tt.text)
			v.Weight = tt.weight
			if got := string(nodeLine(v, AdminNever)); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// The words of AdminAlways: each answer holds one administrative word and says up
// or down too.
func TestAdminWords(t *testing.T) {
	for _, tt := range []struct {
		verdict topology.Verdict
		code    topology.Code
		want    string
	}{
		{topology.Up, topology.CodeWriter, "ready up 70%\n"},
		{topology.Up, topology.CodeFallback, "ready up 70% #text\n"},
		{topology.Drain, topology.CodeLag, "drain up 100% #text\n"},
		{topology.Drain, topology.CodeMaintenance, "drain up 100% #text\n"},
		{topology.Down, topology.CodeWrongRole, "maint down #text\n"},
		{topology.Down, topology.CodeMinDown, "maint down #text\n"},
		{topology.Down, topology.CodeRefused, "ready down #text\n"},
		{topology.Down, topology.CodeReadOnly, "ready down #text\n"},
		{topology.Undecided, topology.CodeNoEvidence, ""},
	} {
		v := verdict("n1", tt.verdict, tt.code, "text")
		v.Weight = 70
		if got := string(nodeLine(v, AdminAlways)); got != tt.want {
			t.Errorf("%s with %s: %q, want %q", tt.verdict, tt.code, got, tt.want)
		}
	}
}

// What is neither a node's verdict nor from the table follows the setting too, and
// a change of it counts from the next answer on.
func TestAdminWordsOfGuardsAndUnknownNames(t *testing.T) {
	shut := cluster("main")
	shut.Pools[0].Nodes[0] = verdict("n1", topology.Drain, topology.CodeNoLeader, "")
	s := newWorld(shut).server(t, Options{AdminWords: AdminAlways})
	for request, want := range map[string][2]string{
		"main primary !guard": {"ready up 100% #shut: no node is up\n", "up 100% #shut: no node is up\n"},
		"main replica !guard": {"ready down #open: n2 is up\n", "down #open: n2 is up\n"},
		"main primary n9":     {"ready down #unknown main/primary/n9\n", "down #unknown main/primary/n9\n"},
		"main nosuch !guard":  {"ready up 100% #unknown main/nosuch/!guard\n", "up 100% #unknown main/nosuch/!guard\n"},
		"main primary n2":     {"maint down #in recovery\n", "down #in recovery\n"},
	} {
		for i, words := range []AdminWords{AdminAlways, AdminNever} {
			s.SetAdminWords(words)
			if got := string(s.Answer([]byte(request))); got != want[i] {
				t.Errorf("%s: %q, want %q", request, got, want[i])
			}
		}
	}
}

// Every reason there is gives a line, whatever the verdict.
func TestEveryReasonHasALine(t *testing.T) {
	for _, c := range topology.Codes {
		for _, v := range []topology.Verdict{topology.Up, topology.Drain, topology.Down} {
			got := string(nodeLine(verdict("n1", v, c.Code, ""), AdminNever))
			if word, _, _ := strings.Cut(got, " "); word != "up" && word != "down" || !strings.HasSuffix(got, "\n") {
				t.Errorf("%s with %s: %q", v, c.Code, got)
			}
		}
	}
}
