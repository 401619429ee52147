package healthapi

import (
	"net/http"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// clusterBody is Patroni's /cluster.
type clusterBody struct {
	Members    []memberBody    `json:"members"`
	Scope      string          `json:"scope,omitempty"` // not in Patroni 3
	Pause      bool            `json:"pause,omitempty"`
	Switchover *switchoverBody `json:"scheduled_switchover,omitempty"`
}

type switchoverBody struct {
	At   string `json:"at"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

type memberBody struct {
	Name     string         `json:"name"`
	Role     string         `json:"role"`
	State    string         `json:"state"`
	APIURL   *string        `json:"api_url"` // null: not known
	Host     string         `json:"host,omitempty"`
	Port     uint16         `json:"port,omitempty"`
	Timeline uint32         `json:"timeline,omitempty"`
	Tags     map[string]any `json:"tags,omitempty"`
	restartBody
	*lagBody
}

// lagBody is what members that do not lead have: numbers, or "unknown". Patroni 3
// has the last one alone.
type lagBody struct {
	ReceiveLSN string `json:"receive_lsn,omitempty"`
	ReceiveLag any    `json:"receive_lag,omitempty"`
	ReplayLSN  string `json:"replay_lsn,omitempty"`
	ReplayLag  any    `json:"replay_lag,omitempty"`
	LSN        string `json:"lsn,omitempty"`
	Lag        any    `json:"lag"`
}

// members describes the cluster that the subject's node belongs to.
func (s *Server) members(sub *subject) *reply {
	if sub.snapshot == nil {
		why := topology.Reason{Code: topology.CodeNoEvidence, Text: "nothing is known of cluster " + sub.ref.Cluster + " at present"}
		return newReply(http.StatusServiceUnavailable, why, errorBody{Error: why.Text})
	}
	b := clusterBody{Members: []memberBody{}, Pause: sub.authority().Pause == topology.Yes}
	if !sub.old() {
		b.Scope = sub.ref.Cluster
	}
	if d := sub.documents(); d != nil && d.Switchover != nil {
		b.Switchover = &switchoverBody{d.Switchover.At, d.Switchover.From, d.Switchover.To}
	}
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
		Host: sub.node.Address.Host, Port: sub.node.Address.Port, Tags: tags(sub.node.Tags), restartBody: sub.restart(),
	}
	if own := sub.facts.Member; own != nil {
		m.Timeline = uint32(own.Timeline)
		if own.APIURL != "" {
			m.APIURL = &own.APIURL
		}
	}
	if p := sub.facts.Probe; p != nil {
		m.Timeline = uint32(p.Timeline)
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

// newLagBody goes by what SQL said now or last, and by the member's own word where
// SQL never said anything.
func newLagBody(sub *subject) *lagBody {
	received, replayed := sub.paper().ReceiveLSN, sub.paper().ReplayLSN
	at := max(received, replayed)
	if own := sub.facts.Member; own != nil {
		at = max(at, own.LSN)
	}
	if p := sub.facts.Probe; p != nil {
		received, replayed, at = p.ReceiveLSN, p.ReplayLSN, max(p.ReceiveLSN, p.ReplayLSN)
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
	b.LSN, b.Lag = tell(at)
	if sub.old() {
		b.LSN = ""
		return &b
	}
	b.ReceiveLSN, b.ReceiveLag = tell(received)
	b.ReplayLSN, b.ReplayLag = tell(replayed)
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
