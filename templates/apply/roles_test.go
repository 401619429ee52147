package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// namesWriter is a template of a group that names who serves.
const namesWriter = `{{ range .Databases }}{{ $s := $.Leads . }}{{ .Name }} -> {{ $s.Name }}
{{ end }}`

// newRoles is a bench whose group names the writer to a PgBouncer. turned has each
// reload: when, and where the database was led.
func newRoles(t *testing.T) (b *bench, turned *[]string) {
	t.Helper()
	b, turned = newBench(t), new([]string)
	b.group.Files[0].Template.Text = namesWriter
	b.group.Settings = render.Settings{Roles: true, Databases: []render.Database{{Name: "app", DBName: "app", Cluster: "main", Pool: "primary"}}}
	b.group.Check, b.group.Reload, b.group.PgBouncer = nil, nil, "edge"
	b.turn = func(_ context.Context, bouncer string, leads map[string]string) error {
		*turned = append(*turned, fmt.Sprint(bouncer, maps.Clone(leads)))
		return nil
	}
	return b, turned
}

// up publishes a decision on n1 to n3 in which one is the writer, or none.
func (b *bench) up(writer string) {
	b.gen++
	s := &topology.Snapshot{Cluster: "main", Generation: b.gen, Complete: true, Writer: writer}
	p := topology.PoolVerdicts{Pool: "primary", Mode: topology.ModeWrite}
	for i, n := range []string{"n1", "n2", "n3"} {
		at := topology.Address{Host: fmt.Sprintf("10.0.0.%d", i+1), Port: 5432}
		s.Nodes = append(s.Nodes, topology.Node{Name: n, Address: at})
		v := topology.NodeVerdict{Node: n, Address: at, Verdict: topology.Down}
		if n == writer {
			v.Verdict = topology.Up
		}
		p.Nodes = append(p.Nodes, v)
	}
	s.Pools = []topology.PoolVerdicts{p}
	b.views.Set("main", &topology.View{Snapshot: s})
}

func wantTurned(t *testing.T, turned *[]string, want ...string) {
	t.Helper()
	if got := strings.Join(*turned, " "); got != strings.Join(want, " ") {
		t.Errorf("turned were %q, want %q", got, want)
	}
}

// A change of the writer waits for nothing: neither for further changes nor for the
// least time between two reloads. While there is no writer, what stands is held.
func TestRolesAreNamedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, turned := newRoles(t)
		b.group.ReloadInterval = time.Hour
		b.write("app -> n3\n")
		b.up("")
		b.start()
		b.after(time.Minute)
		b.wantFile("app -> n3\n")
		b.wantState(StateHeld)
		if s := b.status().Error; !strings.Contains(s, "main/primary") {
			t.Errorf("it is held because %q", s)
		}
		if n := b.status().Refused[RefusedTemplate]; n != 0 {
			t.Errorf("to wait for a writer counts as %d faults of the template", n)
		}
		b.up("n1")
		b.after(0)
		b.wantFile("app -> n1\n")
		b.wantState(StateApplied)
		b.up("")
		b.after(time.Minute)
		b.wantFile("app -> n1\n")
		b.wantState(StateApplied)
		b.up("n2")
		b.after(0)
		b.wantFile("app -> n2\n")
		wantTurned(t, turned, "edgemap[app:10.0.0.1:5432]", "edgemap[app:10.0.0.2:5432]")
		if got := b.status().Applied["main"]; got != b.gen {
			t.Errorf("applied is generation %d, want %d", got, b.gen)
		}
		b.stop()
	})
}

// A PgBouncer that does not obey is tried again, and the file stays: an earlier one
// would name a node that is the writer no more. So does it through a restart of the
// agent, which owes the reload.
func TestRolesAreNeverPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, turned := newRoles(t)
		b.up("n1")
		b.start()
		b.after(time.Second)
		obeys := b.turn
		refusing := 0
		b.stop()
		b.turn = func(context.Context, string, map[string]string) error { refusing++; return errors.New("no console") }
		b.up("n2")
		b.start()
		b.after(10 * time.Second)
		b.wantFile("app -> n2\n")
		b.wantState(StatePending)
		if s := b.status(); refusing < 2 || !strings.Contains(s.Error, "no console") || s.ReloadsFailed == 0 {
			t.Errorf("refused %d times; the status is %+v", refusing, s)
		}
		b.stop()
		b.turn = obeys
		b.start()
		b.after(time.Second)
		b.wantState(StateApplied)
		wantTurned(t, turned, "edgemap[app:10.0.0.1:5432]", "edgemap[app:10.0.0.2:5432]")
		b.stop()
	})
}

// A group for PgBouncer without a console, as in a program that only renders, says so.
func TestRolesWithoutConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newRoles(t)
		b.turn = nil
		b.up("n1")
		b.start()
		b.after(time.Second)
		b.wantState(StatePending)
		if s := b.status().Error; !strings.Contains(s, "the running agent's") {
			t.Errorf("the error is %q", s)
		}
		b.stop()
		b.group.Reload = []string{"reload"}
		if err := b.group.Validate(); err == nil {
			t.Error("a PgBouncer and a command are both to reload")
		}
	})
}
