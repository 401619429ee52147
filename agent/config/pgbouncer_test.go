package config

import (
	"os"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// A PgBouncer as the manual shows it, with what it leaves out filled in.
func TestPgBouncer(t *testing.T) {
	text, err := os.ReadFile("testdata/good/pgbouncer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("/etc/pgsteer/pgsteer.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	app := PgBouncerDatabase{Name: "app", Pool: PoolRef{"main", "primary"}}
	compare(t, []PgBouncer{
		{
			Name: "edge", Address: "/run/postgresql/.s.PGSQL.6432", User: "pgsteer", PasswordFile: "/etc/pgsteer/console.pw", SSLMode: SSLPrefer, Timeout: 2 * time.Second,
			Databases: []PgBouncerDatabase{app, {Name: "app_ro", Pool: PoolRef{"main", "replica"}, DBName: "app"}},
		},
		{Name: "far", Address: "[fd00::1]:6432", User: "dba", SSLMode: SSLPrefer, Timeout: 2 * time.Second, Databases: []PgBouncerDatabase{app}},
	}, c.PgBouncers)
	if got := []topology.Mode{c.Mode(PoolRef{"main", "primary"}), c.Mode(PoolRef{"main", "replica"}), c.Mode(PoolRef{"main", "x"})}; got[0] != topology.ModeWrite || got[1] != topology.ModeRead || got[2] != "" {
		t.Errorf("the modes are %q", got)
	}
	main, _ := c.Cluster("main")
	compare(t, Switchover{Command: []string{"switch", "{{.Cluster}}", "--to={{.To}}"}, Limit: 5 * time.Second, Timeout: time.Minute}, main.Switchover)
	if tpl := c.Templates[0]; !tpl.Roles || tpl.PgBouncer != "edge" || !tpl.Files[0].IsPgBouncer() || tpl.Files[0].IsHAProxy() {
		t.Errorf("the template is %+v", tpl)
	}
}
