package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// monitorSession is a monitor that answers with rights, and then with a count.
type monitorSession struct {
	rights pgautofailover.Rights
	nodes  string
	err    error
	asked  *string // the last question
}

func (s monitorSession) Value(_ context.Context, sql string) (string, error) {
	*s.asked = sql
	if sql != pgautofailover.RightsQuery {
		return s.nodes, s.err
	}
	b, err := json.Marshal(s.rights)
	return string(b), errors.Join(err, s.err)
}

func (monitorSession) Close() {}

const monitored = `clusters: {main: {authority: pg_auto_failover, pg_auto_failover: {monitors: ["10.0.0.9:5432"], formation: it's, group: 2}}}`

func TestMonitor(t *testing.T) {
	const at = "cluster main, monitor 10.0.0.9:5432: "
	for _, tt := range []struct {
		name   string
		change func(*monitorSession)
		want   string // rows, joined by |
		do     string // in what to do of the first trouble
	}{
		{"good", func(*monitorSession) {}, "OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node", ""},
		{"table", func(m *monitorSession) { m.rights.Schema = new("pgautofailover") }, "OK " + at + "version 2.0; 3 nodes, read from the table pgautofailover.node", ""},
		{
			"nothing to read", func(m *monitorSession) { m.rights.Schema = nil },
			"FAIL " + at + "pgsteer can read neither the view pgsteer.node nor the table pgautofailover.node", ":\nCREATE SCHEMA pgsteer;\nCREATE VIEW",
		},
		{
			"views without a grant", func(m *monitorSession) { m.rights.Schema, m.rights.Views, m.rights.Role = nil, true, "Probe" },
			"FAIL " + at + "Probe can read neither the view pgsteer.node nor the table pgautofailover.node", ":\nGRANT USAGE ON SCHEMA pgsteer TO \"Probe\";\nGRANT SELECT",
		},
		{
			"keeper's role", func(m *monitorSession) { m.rights.Acts, m.rights.Role = true, "autoctl_node" },
			"OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node|WARN " + at + "autoctl_node may start failovers and remove nodes: whoever reads its password can", "CREATE ROLE pgsteer LOGIN",
		},
		{
			"superuser", func(m *monitorSession) { m.rights.Acts, m.rights.Superuser = true, true },
			"OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node|WARN " + at + "pgsteer is a superuser: whoever reads its password has the monitor", "user: pgsteer",
		},
		{
			"another version", func(m *monitorSession) { m.rights.Version = new("2.4") },
			"OK " + at + "version 2.4; 3 nodes, read from the view pgsteer.node|WARN " + at + "version 2.4 was never tried with pgsteer; known are 2.0, 2.1, 2.2, 2.3", "status",
		},
		{
			"no TLS", func(m *monitorSession) { m.rights.TLS = false },
			"OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node|WARN " + at + "not encrypted: the server offers no TLS, and sslmode prefer takes that", "ssl = on",
		},
		{
			"no room for a second agent", func(m *monitorSession) { m.rights.Limit = 1 },
			"OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node|WARN " + at + "it is 1; each agent keeps a session for each of its clusters here, which are 1", "ALTER ROLE pgsteer CONNECTION LIMIT 2;",
		},
		{
			"no room", func(m *monitorSession) { m.rights.Limit, m.rights.Role = 0, "Probe" },
			"OK " + at + "version 2.0; 3 nodes, read from the view pgsteer.node|FAIL " + at + "it is 0; each agent keeps a session for each of its clusters here, which are 1, so some of them have no authority", `ALTER ROLE "Probe" CONNECTION LIMIT 2;`,
		},
		{"a copy", func(m *monitorSession) { m.rights.Recovery = true }, "FAIL " + at + "it is in recovery: a copy of the monitor, which may be behind", "monitors"},
		{"another database", func(m *monitorSession) { m.rights.Version, m.rights.Schema = nil, nil }, "FAIL " + at + "there is no extension pgautofailover in database pg_auto_failover", "database"},
		{"no such group", func(m *monitorSession) { m.nodes = "0" }, "FAIL " + at + "it knows no node of formation it's, group 2", "pg_autoctl show state"},
		{"broken", func(m *monitorSession) { m.err = errors.New("broken") }, "FAIL " + at + "broken", "log"},
	} {
		asked := ""
		s := monitorSession{pgautofailover.Rights{Role: "pgsteer", Version: new("2.0"), Schema: new("pgsteer"), Views: false, TLS: true, Limit: -1}, "3", nil, &asked}
		tt.change(&s)
		o := options(t, monitored)
		o.Monitor = func(context.Context, string, topology.Address) (Session, *topology.Failure) { return s, nil }
		same(t, of(t, "monitor", o), strings.Split(tt.want, "|")...)
		if s.rights.Schema != nil && s.err == nil && !strings.Contains(asked, "formationid = 'it''s' AND groupid = 2") {
			t.Errorf("%s: the nodes were counted by %s", tt.name, asked)
		}
		for _, r := range Run(t.Context(), o) {
			if r.Check == "monitor" && r.Level != OK && !strings.Contains(r.Do, tt.do) {
				t.Errorf("%s: do %q, which lacks %q", tt.name, r.Do, tt.do)
			}
		}
	}
}

// One of two monitors that is not there is a risk, and none at all cannot work. A
// role that is not there gets its whole recipe.
func TestSeveralMonitors(t *testing.T) {
	o := options(t, strings.Replace(monitored, `"10.0.0.9:5432"`, `"10.0.0.8:1", "10.0.0.9:1"`, 1))
	asked, up := "", true
	o.Monitor = func(_ context.Context, cluster string, at topology.Address) (Session, *topology.Failure) {
		if cluster == "main" && at.Host == "10.0.0.9" && up {
			return monitorSession{pgautofailover.Rights{Version: new("2.1"), Schema: new("pgsteer"), TLS: true, Limit: 2}, "2", nil, &asked}, nil
		}
		return nil, &topology.Failure{Class: topology.FailAuth, Text: "no pg_hba.conf entry"}
	}
	const bad = "cluster main, monitor 10.0.0.8:1: auth: no pg_hba.conf entry"
	same(t, of(t, "monitor", o), "WARN "+bad, "OK cluster main, monitor 10.0.0.9:1: version 2.1; 2 nodes, read from the view pgsteer.node")
	up = false
	same(t, of(t, "monitor", o), "FAIL "+bad, "FAIL "+strings.Replace(bad, "0.8", "0.9", 1))
	for _, r := range Run(t.Context(), o) {
		if r.Check == "monitor" && (!strings.Contains(r.Do, "`host pg_auto_failover pgsteer") || !strings.Contains(r.Do, "CREATE ROLE pgsteer LOGIN CONNECTION LIMIT 50;\nCREATE SCHEMA")) {
			t.Errorf("do %q", r.Do)
		}
	}
	same(t, of(t, "monitor", options(t, ""))) // nobody asks, or no cluster has one
}
