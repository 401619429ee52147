package doctor

import (
	"context"
	"encoding/json"

	"github.com/pgsteer/pgsteer/agent/drain"
)

// sessionRole looks whether sessions could be seen and ended, before somebody needs it.
func sessionRole(ctx context.Context, x *exam) []Result {
	if x.Ender == nil {
		return nil
	}
	nodes := x.visit(ctx)
	all := make([]Result, len(nodes))
	each(len(nodes), func(i int) { all[i] = x.askEnder(ctx, nodes[i]) })
	return all
}

func (x *exam) askEnder(ctx context.Context, n node) Result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	user := x.Config.Maintenance.Sessions.User
	r := Result{Subject: n.subject(), Level: Fail, Tried: "log in as " + user + " and ask for its rights"}
	s, f := x.Ender(ctx, n.cluster.Name, n.Node)
	if f != nil {
		r.Found, r.Do = string(f.Class)+": "+f.Text, "see that the role may log in as the probe role may; "+remedy(f.Class, n.cluster.Postgres, "postgres")
		return r
	}
	defer s.Close()
	var rights drain.Rights
	text, err := s.Value(ctx, drain.RightsQuery)
	if err == nil {
		err = json.Unmarshal([]byte(text), &rights)
	}
	missing, grant := rights.Missing()
	switch {
	case err != nil:
		r.Found, r.Do = err.Error(), "see PostgreSQL's log there"
	case missing != "" && rights.Stats:
		r.Level, r.Found, r.Do = Warn, missing+"; of the drains at the server only those with --keep work", grant
	case missing != "":
		r.Found, r.Do = missing, grant
	default:
		r.Level, r.Found = OK, rights.User+" may see and end sessions"
	}
	return r
}
