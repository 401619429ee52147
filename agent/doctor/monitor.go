package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// monitor is what a login at a monitor of pg_auto_failover has shown.
type monitor struct {
	cluster config.Cluster
	at      topology.Address
	failure *topology.Failure
	trouble error                  // of a question
	rights  *pgautofailover.Rights // nil when the login or the question failed
	nodes   int                    // of the group
	sharing int                    // clusters that are read there by the same login
}

func monitors(ctx context.Context, x *exam) []Result {
	if x.Monitor == nil {
		return nil
	}
	var seen []monitor
	for _, cl := range x.Config.Clusters {
		if cl.Authority != topology.AuthorityMonitor {
			continue
		}
		for _, at := range cl.Monitor.Monitors {
			seen = append(seen, monitor{cluster: cl, at: at})
		}
	}
	for i := range seen {
		for _, o := range seen {
			if o.at == seen[i].at && o.cluster.Monitor.User == seen[i].cluster.Monitor.User {
				seen[i].sharing++
			}
		}
	}
	each(len(seen), func(i int) { x.lookAtMonitor(ctx, &seen[i]) })
	var all []Result
	for _, m := range seen {
		works := slices.ContainsFunc(seen, func(o monitor) bool {
			return o.cluster.Name == m.cluster.Name && o.judge().Level == OK
		})
		r := m.judge()
		if r.Level == Fail && works {
			r.Level = Warn // another monitor of the cluster is read
		}
		all = append(append(all, r), m.more()...)
	}
	return all
}

func (x *exam) lookAtMonitor(ctx context.Context, m *monitor) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, f := x.Monitor(ctx, m.cluster.Name, m.at)
	if f != nil {
		m.failure = f
		return
	}
	defer s.Close()
	text, err := s.Value(ctx, pgautofailover.RightsQuery)
	rights := new(pgautofailover.Rights)
	if err == nil {
		err = json.Unmarshal([]byte(text), rights)
	}
	if err == nil && rights.Schema != nil {
		p := m.cluster.Monitor
		if text, err = s.Value(ctx, pgautofailover.CountQuery(*rights.Schema, p.Formation, p.Group)); err == nil {
			m.nodes, err = strconv.Atoi(text)
		}
	}
	if err != nil {
		m.trouble = err
		return
	}
	m.rights = rights
}

// judge says whether the monitor's word can be had there.
func (m monitor) judge() Result {
	p, f := m.cluster.Monitor, m.rights
	r := m.row(Fail, fmt.Sprintf("log in as %s to database %s, and find formation %s, group %d", p.User, p.Database, p.Formation, p.Group))
	switch {
	case m.failure != nil:
		r.Found, r.Do = string(m.failure.Class)+": "+m.failure.Text, remedy(m.failure.Class, p.Login(), "pg_auto_failover")
		if m.failure.Class == topology.FailAuth {
			r.Do += "; if there is no such role, " + m.recipe(p.User, false, false)
		}
	case m.trouble != nil:
		r.Found, r.Do = m.trouble.Error(), "see PostgreSQL's log there"
	case f.Recovery:
		r.Found, r.Do = "it is in recovery: a copy of the monitor, which may be behind", "name the monitor itself in pg_auto_failover.monitors"
	case f.Version == nil:
		r.Found, r.Do = "there is no extension pgautofailover in database "+p.Database, "name the monitor's database in pg_auto_failover.database"
	case f.Schema == nil:
		r.Found, r.Do = f.Role+" can read neither the view pgsteer.node nor the table pgautofailover.node", m.recipe(f.Role, true, f.Views)
	case m.nodes == 0:
		r.Found = fmt.Sprintf("it knows no node of formation %s, group %d", p.Formation, p.Group)
		r.Do = "compare pg_auto_failover.formation and pg_auto_failover.group with pg_autoctl show state"
	default:
		what := "table"
		if *f.Schema == "pgsteer" {
			what = "view"
		}
		r.Level, r.Found = OK, fmt.Sprintf("version %s; %d nodes, read from the %s %s.node", *f.Version, m.nodes, what, *f.Schema)
	}
	return r
}

// more are the troubles with which it works.
func (m monitor) more() []Result {
	f := m.rights
	if f == nil {
		return nil
	}
	var all []Result
	if f.Superuser || f.Acts {
		r := m.row(Warn, "ask which rights "+f.Role+" has")
		r.Found = f.Role + " may start failovers and remove nodes: whoever reads its password can"
		if f.Superuser {
			r.Found = f.Role + " is a superuser: whoever reads its password has the monitor"
		}
		r.Do = "log in as a role that can read and do no more (pg_auto_failover.user: pgsteer); " + m.recipe("pgsteer", false, f.Views)
		all = append(all, r)
	}
	if f.Version != nil && !slices.Contains(pgautofailover.Versions, *f.Version) {
		r := m.row(Warn, "read the extension's version")
		r.Found = "version " + *f.Version + " was never tried with pgsteer; known are " + strings.Join(pgautofailover.Versions, ", ")
		r.Do = "watch pgsteer status for what cannot be used of the monitor's word"
		all = append(all, r)
	}
	if need := 2 * m.sharing; f.Limit >= 0 && !f.Superuser && f.Limit < need {
		r := m.row(Warn, "read the connection limit of "+f.Role)
		r.Found = fmt.Sprintf("it is %d; each agent keeps a session for each of its clusters here, which are %d", f.Limit, m.sharing)
		if f.Limit < m.sharing {
			r.Level = Fail
			r.Found += ", so some of them have no authority"
		}
		r.Do = "as superuser of the monitor: " + pgautofailover.LimitFor(f.Role, need) + " that is enough for two agents"
		all = append(all, r)
	}
	if r := encrypted(m.row(OK, "read pg_stat_ssl"), f.TLS, m.cluster.Monitor.SSLMode, m.at.Host); r.Level != OK {
		all = append(all, r)
	}
	return all
}

// row is a row about this monitor.
func (m monitor) row(level Level, tried string) Result {
	return Result{Subject: "cluster " + m.cluster.Name + ", monitor " + m.at.String(), Level: level, Tried: tried}
}

// recipe says what to run there for a role that can read and do no more.
func (m monitor) recipe(role string, roleThere, viewsThere bool) string {
	return "as superuser in database " + m.cluster.Monitor.Database + " of the monitor:\n" +
		strings.TrimSpace(pgautofailover.RecipeFor(role, roleThere, viewsThere))
}
