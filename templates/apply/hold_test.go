package apply

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestUndecidedNodesHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Clusters = []string{"main", "aux"}
		b.write("old\n")
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		part := snapshotOf("aux", 1, "a1")
		part.Complete = false
		b.views.Set("aux", &topology.View{Snapshot: part})
		b.after(time.Hour)
		b.wantFile("old\n")
		b.wantCalls(0, 0)
		b.wantState(StateWaiting)
		if s := b.status(); !strings.Contains(s.Error, "aux") || strings.Contains(s.Error, "main") {
			t.Errorf("it waits for %q", s.Error)
		}
		// Completeness alone wakes nobody.
		b.views.Refresh("aux", &topology.View{Snapshot: snapshotOf("aux", 1, "a1")})
		b.after(2 * time.Second)
		b.wantFile("server a1 10.0.0.1:5432\n" + text("n1"))
	})
}

func TestEmptyClusterIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Clusters = []string{"aux", "main"}
		b.nodes("aux", "a1")
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(10 * time.Second)
		full := "server a1 10.0.0.1:5432\n" + text("n1")
		b.wantFile(full)
		b.nodes("main")
		b.after(20 * time.Second)
		b.wantFile(full)
		b.wantCalls(1, 1)
		b.wantState(StateHeld)
		if s := b.status(); s.Refused[RefusedEmpty] != 1 || !strings.Contains(s.Error, "main") {
			t.Errorf("status %+v", s)
		}
		b.nodes("aux", "a1", "a2") // the other cluster goes on
		b.after(5 * time.Second)
		b.wantFile("server a1 10.0.0.1:5432\nserver a2 10.0.0.1:5432\n" + text("n1"))
		b.nodes("main", "n1") // it was a hiccup
		b.after(time.Minute)
		b.wantState(StateApplied)
		b.wantCalls(2, 2)
		b.nodes("main") // and this is real
		b.after(31 * time.Second)
		b.wantFile("server a1 10.0.0.1:5432\nserver a2 10.0.0.1:5432\nend\n")
		b.wantState(StateApplied)
	})
}

func TestEmptyAtStartIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(text("n1"))
		b.nodes("main")
		b.start()
		defer b.stop()
		b.after(29 * time.Second)
		b.wantFile(text("n1"))
		b.wantState(StateHeld)
		b.after(2 * time.Second)
		b.wantFile("end\n")
	})
}

// What no file can hold is left out and said once; its own node and cluster, and
// all others, go on (field reports FR-28, FR-37).
func TestLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Clusters = []string{"main", "aux"}
		b.nodes("aux", "a1")
		b.start()
		defer b.stop()
		show := func(generation uint64, bad ...string) {
			s := snapshotOf("main", generation, append([]string{"n1", "N1"}, bad...)...)
			s.Nodes[0].Tags = map[string]string{"note": "a\nb"}
			b.views.Set("main", &topology.View{Snapshot: s})
			b.after(10 * time.Second)
		}
		const files = "server a1 10.0.0.1:5432\nserver N1 10.0.0.1:5432\nserver n1 10.0.0.1:5432\n"
		show(1, "n\n2")
		show(2, "n\n2")
		b.wantFile(files + "end\n")
		b.wantState(StateApplied)
		if n := strings.Count(b.log.String(), "level=WARN"); n != 2 {
			t.Errorf("%d warnings, want one for the node and one for the tag:\n%s", n, b.log.String())
		}
		want := []string{
			`node "main/n\n2" is left out: name "n\n2": only letters, digits, '.', '_' and '-' are allowed, the first a letter or digit`,
			`tag "note" of node "main/n1" is left out: it has a line break or another control character`,
		}
		if diff := cmp.Diff(want, b.status().LeftOut); diff != "" {
			t.Error(diff)
		}
		show(3)
		show(4, "n3", "n\n2")
		b.wantFile(files + "server n3 10.0.0.1:5432\nend\n")
		if n := strings.Count(b.log.String(), "level=WARN"); n != 3 {
			t.Errorf("%d warnings after the node came again, want 3:\n%s", n, b.log.String())
		}
	})
}

func TestTemplateErrorHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Files[0].Template.Text = `{{ range (index .Clusters 0).Pools }}{{ range .Servers }}{{ if eq .Name "bad" }}{{ fail "no %s" .Name }}{{ end }}{{ .Name }}
{{ end }}{{ end }}`
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.nodes("main", "bad")
		b.after(time.Hour)
		b.wantFile("n1\n")
		b.wantState(StateHeld)
		if s := b.status(); !strings.Contains(s.Error, "t:1:") || !strings.Contains(s.Error, "no bad") {
			t.Errorf("status %+v", s)
		}
		b.nodes("main", "n2")
		b.after(time.Second)
		b.wantFile("n2\n")
		b.wantState(StateApplied)
	})
}

// A source that loses most of a cluster at once is not believed at first.
func TestMostNodesGoneIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.nodes("main", "n1", "n2", "n3", "n4")
		b.start()
		defer b.stop()
		b.after(10 * time.Second)
		b.nodes("main", "n1", "n2") // half: an ordinary change
		b.after(10 * time.Second)
		b.wantFile(text("n1", "n2"))
		b.nodes("main", "n1", "n2", "n3")
		b.after(10 * time.Second)
		b.nodes("main", "n1")
		b.after(20 * time.Second)
		b.wantFile(text("n1", "n2", "n3"))
		b.wantState(StateHeld)
		if n := b.status().Refused[RefusedEmpty]; n != 1 {
			t.Errorf("%d refusals counted, want 1", n)
		}
		b.after(20 * time.Second)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)
	})
}

func TestNoWholeHAProxyFileIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Files[0].HAProxy = true
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(10 * time.Second)
		b.wantState(StateHeld)
		b.wantCalls(0, 0)
		if s := b.status(); !strings.Contains(s.Error, "no bind") || s.Refused[RefusedTemplate] != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// Nodes whose names nobody can resolve are as good as gone.
func TestUnresolvedNodesAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.nodes("main", "n1", "n2")
		b.start()
		defer b.stop()
		b.after(10 * time.Second)
		s := snapshotOf("main", 9, "n1", "n2")
		for i := range s.Nodes {
			s.Nodes[i].Address.Host = "db.example"
		}
		b.views.Set("main", &topology.View{Snapshot: s})
		b.after(20 * time.Second)
		b.wantFile(text("n1", "n2"))
		b.wantState(StateHeld)
	})
}
