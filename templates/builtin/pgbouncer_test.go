package builtin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
)

// ofPgBouncer renders the section [databases] for some databases.
func ofPgBouncer(t *testing.T, before map[render.PoolID]string, snaps []*topology.Snapshot, all ...render.Database) ([]byte, render.View) {
	t.Helper()
	text, ok := builtin.Text(builtin.PgBouncer)
	if !ok {
		t.Fatal("there is no template for PgBouncer")
	}
	v := render.ViewOf(snaps, render.Settings{Roles: true, Before: before, Databases: all})
	b, err := render.Render(render.Template{Name: builtin.PgBouncer, Text: text}, v)
	if err != nil {
		t.Fatal(err)
	}
	if err := render.CheckPgBouncer(b, v); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	return b, v
}

// entries are the lines below [databases].
func entries(text []byte) string {
	_, after, _ := strings.Cut(string(text), "[databases]\n")
	return after
}

var twoDatabases = []render.Database{
	{Name: "app", DBName: "it's", Cluster: "main", Pool: "primary"},
	{Name: "app.ro-1", DBName: "app", Cluster: "main", Pool: "replica"},
}

// One host for each database, in the configuration's order: the writer, and of a read
// pool one that is up, which stays as long as it is.
func TestPgBouncerNamesWhoServes(t *testing.T) {
	main := func(writer string) []*topology.Snapshot { return []*topology.Snapshot{snapshot("main", 3, writer)} }
	replica := render.PoolID{Cluster: "main", Pool: "replica"}
	for _, tt := range []struct {
		name, writer, primary, reads string
		before                       map[render.PoolID]string
	}{
		{"at first", "n1", "10.0.0.1", "10.0.0.2", nil},
		{"who serves stays", "n1", "10.0.0.1", "10.0.0.3", map[render.PoolID]string{replica: "n3"}},
		{"another writer", "n3", "10.0.0.3", "10.0.0.1", map[render.PoolID]string{replica: "n3"}},
		{"no writer: the one of before", "", "10.0.0.2", "10.0.0.1", map[render.PoolID]string{{Cluster: "main", Pool: "primary"}: "n2", replica: "n9"}},
	} {
		text, _ := ofPgBouncer(t, tt.before, main(tt.writer), twoDatabases...)
		want := fmt.Sprintf("app = host='%s' port=5432 dbname='it''s'\napp.ro-1 = host='%s' port=5432 dbname='app'\n", tt.primary, tt.reads)
		if diff := cmp.Diff(want, entries(text)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
	}
	ipv6 := snapshotOf("main", []topology.Node{{Name: "n1", Address: topology.Address{Host: "fd00::1", Port: 5433}}}, "n1")
	text, _ := ofPgBouncer(t, nil, []*topology.Snapshot{ipv6}, twoDatabases[:1]...)
	if want := "app = host='fd00::1' port=5433 dbname='it''s'\n"; entries(text) != want {
		t.Errorf("%s, want %s", entries(text), want)
	}
}

// Without anybody to name there is no text: what stands is held.
func TestPgBouncerWithoutAWriter(t *testing.T) {
	v := render.ViewOf([]*topology.Snapshot{snapshot("main", 3, "")}, render.Settings{Roles: true, Databases: twoDatabases})
	if got := render.Unnamed(v); len(got) != 1 || got[0] != "main/primary" {
		t.Errorf("nobody is named for %v", got)
	}
	text, _ := builtin.Text(builtin.PgBouncer)
	if b, err := render.Render(render.Template{Name: "t", Text: text}, v); err == nil {
		t.Errorf("it was rendered:\n%s", b)
	}
	undecided := snapshot("main", 2, "")
	for p := range undecided.Pools {
		for n := range undecided.Pools[p].Nodes {
			undecided.Pools[p].Nodes[n].Verdict = topology.Undecided
		}
	}
	v = render.ViewOf([]*topology.Snapshot{undecided}, render.Settings{Roles: true, Databases: twoDatabases})
	if got := render.Unnamed(v); len(got) != 2 {
		t.Errorf("before anything is decided, nobody is named for %v", got)
	}
	plain := render.ViewOf([]*topology.Snapshot{snapshot("main", 3, "n1")}, render.Settings{Databases: twoDatabases})
	if got := render.Named(plain); len(got) != 0 {
		t.Errorf("a file that is not marked names %v", got)
	}
}

// What PgBouncer would take, and what leads clients astray.
func TestCheckPgBouncer(t *testing.T) {
	good, v := ofPgBouncer(t, nil, []*topology.Snapshot{snapshot("main", 3, "n1")}, twoDatabases...)
	for what, change := range map[string][2]string{
		"cut":               {"dbname='app'\n", "dbname='app'"},
		"a host list":       {"host='10.0.0.1'", "host='10.0.0.1,10.0.0.2'"},
		"another host":      {"host='10.0.0.1'", "host='10.0.0.2'"},
		"another port":      {"port=5432 dbname='it", "port=5433 dbname='it"},
		"a missing one":     {"app = host='10.0.0.1' port=5432 dbname='it''s'\n", ""},
		"one that is twice": {"app.ro-1 = ", "app = host='10.0.0.1' port=5432 dbname='x'\napp.ro-1 = "},
		"a foreign one":     {"app.ro-1 = ", "* = host='10.0.0.1' port=5432\napp.ro-1 = "},
		"a section":         {"[databases]\n", "[databases]\n[pgbouncer]\n"},
		"no entry":          {"[databases]\n", "[databases]\nadmin_users=all\n"},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if bad == string(good) {
			t.Fatalf("%s changes nothing", what)
		}
		if err := render.CheckPgBouncer([]byte(bad), v); err == nil {
			t.Errorf("%s is taken:\n%s", what, bad)
		}
	}
}

// Whatever a database is called, the text is one line for it, or there is none.
func FuzzPgBouncerNames(f *testing.F) {
	for _, seed := range [][2]string{{"app", "app"}, {"a'b", "it's"}, {"a = b", "x\ny"}, {"*", "%include"}, {";x", "'"}, {"", ""}, {"ü", `\`}} {
		f.Add(seed[0], seed[1])
	}
	text, _ := builtin.Text(builtin.PgBouncer)
	f.Fuzz(func(t *testing.T, name, dbname string) {
		v := render.ViewOf([]*topology.Snapshot{snapshot("main", 1, "n1")}, render.Settings{
			Roles: true, Databases: []render.Database{{Name: name, DBName: dbname, Cluster: "main", Pool: "primary"}},
		})
		b, err := render.Render(render.Template{Name: "t", Text: text}, v)
		if err != nil {
			return
		}
		want := name + " = host='10.0.0.1' port=5432 dbname='" + strings.ReplaceAll(dbname, "'", "''") + "'\n"
		if entries(b) != want || strings.Count(want, "\n") != 1 || render.CheckPgBouncer(b, v) != nil {
			t.Errorf("%q and %q give\n%s", name, dbname, b)
		}
	})
}

// A real PgBouncer reads the file as it is meant.
func TestRealPgBouncerReadsIt(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPgBouncer)
	text, v := ofPgBouncer(t, nil, []*topology.Snapshot{snapshot("main", 3, "n1")},
		append(twoDatabases, render.Database{Name: "_-.x", DBName: `a"b\c%s;#=`, Cluster: "main", Pool: "primary"})...)
	path := filepath.Join(l.Dir(), "databases.ini")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := l.PgBouncer(ctx, lab.PgBouncerOptions{Include: path})
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Console(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	results, err := c.PgConn().Exec(ctx, "SHOW DATABASES").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, row := range results[0].Rows {
		got[string(row[0])] = fmt.Sprintf("%s:%s %s", row[1], row[2], row[3])
	}
	for _, d := range v.Databases {
		s, err := v.Leads(d)
		if err != nil {
			t.Fatal(err)
		}
		if want := s.Place() + " " + d.DBName; got[d.Name] != want {
			t.Errorf("PgBouncer has %s at %q, want %q", d.Name, got[d.Name], want)
		}
	}
}
