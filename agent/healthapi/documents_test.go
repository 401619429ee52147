package healthapi

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func testUnreadDocuments(t *testing.T) {
	w := primaryWorld()
	w.everywhere(t, []int{200, 200, 502, 200, 200, 502}, "history", "config", "failsafe", "clusters/main/history", "clusters/main/config", "clusters/main/failsafe")
	w.lost(longAgo, nil)
	w.everywhere(t, []int{200, 200}, "history", "config")
	w.facts.Documents = &topology.Documents{}
	w.everywhere(t, []int{200, 502, 502}, "history", "config", "failsafe")
	w.facts.Documents = nil
	w.everywhere(t, []int{503, 503, 503}, "history", "config", "failsafe")
	w.facts.Documents = &topology.Documents{Config: json.RawMessage("{}")} // of a time when it had a Patroni
	w.snapshot.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
	w.everywhere(t, []int{501, 501, 501}, "history", "config", "failsafe")
	w.facts.Documents.Members = map[string]topology.MemberDocument{"n1": restarting}
	if b := w.body(t, Strict, "/patroni"); b["pending_restart"] != nil {
		t.Error("what a Patroni said that is no more still stands in the body")
	}
	for _, path := range []string{"history", "config", "failsafe"} {
		if got, _ := ask(server(t, nil, nil, Options{}), "GET", "/clusters/main/nodes/n1/"+path); got != 503 {
			t.Errorf("/%s while nothing is known = %d, want 503", path, got)
		}
	}
}

// A document is Patroni's own text on one line, whichever node or method asks.
func TestDocumentsAreWhole(t *testing.T) {
	w := primaryWorld()
	w.facts.Documents.History = json.RawMessage("[\n [1, 2, \"no recovery target specified\", \"2026-11-30T08:42:10.978439+00:00\", \"n2\"]\n]")
	h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}})
	const want = `[[1,2,"no recovery target specified","2026-11-30T08:42:10.978439+00:00","n2"]]` + "\n"
	for _, target := range []string{"/history", "/clusters/main/history", "/clusters/main/nodes/n2/history", "/clusters/main/nodes/nosuch/history"} {
		_, answer := ask(h, "GET", target)
		if diff := cmp.Diff(want, answer.Body.String()); diff != "" || answer.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s %s", target, answer.Header().Get("Content-Type"), diff)
		}
		_, head := ask(h, "HEAD", target)
		if head.Body.Len() != 0 || head.Header().Get("Content-Length") != answer.Header().Get("Content-Length") {
			t.Errorf("HEAD %s: %d bytes, length %s", target, head.Body.Len(), head.Header().Get("Content-Length"))
		}
	}
}

// dcs_last_seen is of the source that gave the authority's word, and of no other.
func TestLastSeenIsOfTheAuthority(t *testing.T) {
	rest := topology.SourceID{Kind: "patroni", Name: "main"}
	w := primaryWorld()
	w.facts.AuthoritySource = rest
	w.facts.Sources = []topology.SourceFacts{
		{Source: topology.SourceID{Kind: "catalog", Name: "db"}, OKAt: now},
		{Source: rest, OKAt: now - topology.Mono(7*time.Second)},
		{Source: topology.SourceID{Kind: topology.SourcePostgres, Name: "n1"}, OKAt: now},
	}
	want := float64(clock().Wall.Add(-7 * time.Second).Unix())
	for _, compat := range compats {
		if got := w.body(t, compat, "/patroni")["dcs_last_seen"]; got != want {
			t.Errorf("%s: %v, want %v", compat, got, want)
		}
	}
	if !strings.Contains(strings.Join(w.metricLines(t, Strict), "\n"), "patroni_dcs_last_seen 1796039993") {
		t.Error("the metric is of another source")
	}
	w.facts.AuthoritySource = topology.SourceID{}
	if got := w.body(t, Strict, "/patroni")["dcs_last_seen"]; got != nil {
		t.Errorf("without an authority: %v", got)
	}
}

// What SQL never said is as the member says it itself.
func TestMemberOfWhichSQLKnowsNothing(t *testing.T) {
	w := membersWorld()
	w.facts.Documents.Members["n4"] = topology.MemberDocument{ReceiveLSN: replayed, ReplayLSN: replayed - 4096}
	n4 := w.facts.Nodes["n4"]
	n4.Member.Timeline, n4.Member.LSN = 4, replayed
	n4.FailingAt, n4.Failure = lately, &topology.Failure{Class: topology.FailAuth}
	w.facts.Nodes["n4"] = n4
	m := w.body(t, Strict, "/cluster")["members"].([]any)[3].(map[string]any)
	got := []any{m["timeline"], m["lsn"], m["lag"], m["receive_lsn"], m["receive_lag"], m["replay_lsn"], m["replay_lag"]}
	if diff := cmp.Diff([]any{4.0, "0/3000000", 1048576.0, "0/3000000", 1048576.0, "0/2FFF000", 1052672.0}, got); diff != "" {
		t.Error(diff)
	}
	old := w.body(t, Patroni3, "/cluster")["members"].([]any)[3].(map[string]any)
	if old["lag"] != 1048576.0 || old["lsn"] != nil || old["replay_lag"] != nil {
		t.Errorf("as Patroni 3: %v", old)
	}
}
