package healthapi

import (
	"net/http"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// clusterBody is Patroni's /cluster.
type clusterBody struct {
	Members []memberBody `json:"members"`
	Scope   string       `json:"scope"`
	Pause   bool         `json:"pause,omitempty"`
}

type memberBody struct {
	Name     string         `json:"name"`
	Role     string         `json:"role"`
	State    string         `json:"state"`
	APIURL   string         `json:"api_url,omitempty"`
	Host     string         `json:"host,omitempty"`
	Port     uint16         `json:"port,omitempty"`
	Timeline uint32         `json:"timeline,omitempty"`
	Tags     map[string]any `json:"tags,omitempty"`
	*lagBody
}

// lagBody is what members that do not lead have: numbers, or "unknown".
type lagBody struct {
	ReceiveLSN string `json:"receive_lsn"`
	ReceiveLag any    `json:"receive_lag"`
	ReplayLSN  string `json:"replay_lsn"`
	ReplayLag  any    `json:"replay_lag"`
	LSN        string `json:"lsn"`
	Lag        any    `json:"lag"`
}

// members describes the cluster that the subject's node belongs to.
func (s *Server) members(sub *subject) *reply {
	if sub.snapshot == nil {
		why := topology.Reason{Code: topology.CodeNoEvidence, Text: "nothing is known of cluster " + sub.ref.Cluster + " at present"}
		return newReply(http.StatusServiceUnavailable, why, errorBody{Error: why.Text})
	}
	b := clusterBody{Members: []memberBody{}, Scope: sub.ref.Cluster, Pause: sub.authority().Pause == topology.Yes}
	for _, n := range sub.snapshot.Nodes {
		one := *sub
		one.ref.Node, one.node, one.facts, one.known = n.Name, n, sub.cluster.Nodes[n.Name], true
		b.Members = append(b.Members, s.member(&one))
		sub.until = min(sub.until, one.until)
	}
	return newReply(http.StatusOK, topology.Reason{Text: "members as pgsteer knows them"}, b)
}

func (s *Server) member(sub *subject) memberBody {
	m := memberBody{
		Name: sub.ref.Node, Role: "replica", State: s.state(sub),
		Host: sub.node.Address.Host, Port: sub.node.Address.Port, Tags: tags(sub.node.Tags),
	}
	if p := sub.facts.Probe; p != nil {
		m.Timeline = uint32(p.Timeline)
	}
	if own := sub.facts.Member; own != nil {
		m.APIURL = own.APIURL
	}
	switch part := s.part(sub); {
	case sub.standbyLeader():
		m.Role = "standby_leader"
		return m.following(sub, false)
	case sub.leads() || sub.snapshot.Authority.Leader == "" && sub.snapshot.Writer == sub.ref.Node:
		m.Role = "leader"
		return m
	case part != topology.RoleAsync:
		m.Role = string(part) + "_standby"
	}
	return m.following(sub, true)
}

// following adds what members have that are in recovery.
func (m memberBody) following(sub *subject, lag bool) memberBody {
	if state := sub.replicationState(); m.State == running && state != "" && !sub.old() {
		m.State = state
	}
	if lag {
		m.lagBody = newLagBody(sub)
	}
	return m
}

func newLagBody(sub *subject) *lagBody {
	var received, replayed topology.LSN
	if p := sub.facts.Probe; p != nil {
		received, replayed = p.ReceiveLSN, p.ReplayLSN
	}
	end := sub.leaderEnd()
	tell := func(at topology.LSN) (string, any) {
		switch {
		case at == 0 || end == 0:
			return "unknown", "unknown"
		case at > end:
			return at.String(), 0
		}
		return at.String(), uint64(end - at)
	}
	var b lagBody
	b.ReceiveLSN, b.ReceiveLag = tell(received)
	b.ReplayLSN, b.ReplayLag = tell(replayed)
	b.LSN, b.Lag = tell(max(received, replayed))
	return &b
}

// apiURL is the address of another of Patroni's documents beside that of a member
// (http://10.0.0.1:8008/patroni), "" when it has none.
func apiURL(member, name string) string {
	base, ok := strings.CutSuffix(member, "/patroni")
	if !ok {
		return ""
	}
	return base + "/" + name
}
