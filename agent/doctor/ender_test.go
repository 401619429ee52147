package doctor

import (
	"context"
	"errors"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// enderSession answers with what the role may do.
type enderSession struct {
	rights string
	err    error
}

func (s enderSession) Value(context.Context, string) (string, error) { return s.rights, s.err }
func (enderSession) Close()                                          {}

// The role that ends sessions is looked at on every node, also where the probe cannot
// log in; without one there is nothing to look at.
func TestSessionRole(t *testing.T) {
	o := options(t, "maintenance: {admin_token_file: /x/token, sessions: {user: ender}}\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}}}\n")
	o.Login = func(context.Context, string, topology.Node) (Session, *topology.Failure) {
		return nil, &topology.Failure{Class: topology.FailAuth, Text: "no"}
	}
	same(t, of(t, "session-role", o))
	for want, s := range map[string]enderSession{
		"OK main/n1 10.0.0.1:5432: ender may see and end sessions":                                                                   {rights: `{"user":"ender","signal":true,"stats":true}`},
		"WARN main/n1 10.0.0.1:5432: role ender may not end other sessions; of the drains at the server only those with --keep work": {rights: `{"user":"ender","stats":true}`},
		"FAIL main/n1 10.0.0.1:5432: role ender may not see what other sessions do":                                                  {rights: `{"user":"ender","signal":true}`},
		"FAIL main/n1 10.0.0.1:5432: role ender may neither see nor end other sessions":                                              {rights: `{"user":"ender"}`},
		"FAIL main/n1 10.0.0.1:5432: the link broke":                                                                                 {err: errors.New("the link broke")},
		"FAIL main/n1 10.0.0.1:5432: unexpected end of JSON input":                                                                   {},
	} {
		o.Ender = func(_ context.Context, cluster string, n topology.Node) (Session, *topology.Failure) {
			if cluster != "main" || n.Name != "n1" {
				t.Errorf("asked %s/%s", cluster, n.Name)
			}
			return s, nil
		}
		same(t, of(t, "session-role", o), want)
	}
	o.Ender = func(context.Context, string, topology.Node) (Session, *topology.Failure) {
		return nil, &topology.Failure{Class: topology.FailAuth, Text: "password authentication failed"}
	}
	same(t, of(t, "session-role", o), "FAIL main/n1 10.0.0.1:5432: auth: password authentication failed")
}
