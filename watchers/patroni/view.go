package patroni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// pathView is a member's list of the cluster. Patroni reads the store for it,
// with etcd 3, Kubernetes and ZooKeeper through a cache that a watch keeps.
const pathView = "/cluster"

// defaultPort is PostgreSQL's, for members that name none.
const defaultPort = 5432

// view is a member's list of the cluster.
type view struct {
	leader  string // whom it shows as leader; empty: nobody
	standby bool   // … of a standby cluster
	pause   topology.Tri
	members []topology.Member // by name
	sync    []string
	faults  []string // what could not be used
	// For those who ask for it; no rule reads it.
	papers     map[string]topology.MemberDocument // by name
	switchover *topology.Switchover
}

// parseView reads the answer of pathView. A member that cannot be read concerns
// itself alone; a list without members, or with two leaders, is trouble.
func parseView(r reply, scope string) (view, *trouble) {
	if r.status != http.StatusOK {
		return view{}, &trouble{class: topology.FailStore, err: fmt.Errorf("status %d for the list of members: %s", r.status, watchers.Clip(string(r.body)))}
	}
	var body struct {
		Members                  []json.RawMessage
		Scope, Pause, Switchover json.RawMessage
	}
	if err := unmarshal(r.body, map[string]any{
		"members": &body.Members, "scope": &body.Scope, "pause": &body.Pause, "scheduled_switchover": &body.Switchover,
	}); err != nil {
		return view{}, contentTrouble(err)
	}
	if got := text(body.Scope); got != "" { // since 3.2
		if t := foreign(got, scope); t != nil {
			return view{}, t
		}
	}
	v := view{
		pause:  topology.Bool(string(body.Pause) == "true"),
		papers: make(map[string]topology.MemberDocument, len(body.Members)), switchover: switchover(body.Switchover),
	}
	for _, raw := range body.Members {
		if err := v.add(raw); err != nil {
			return view{}, contentTrouble(err)
		}
	}
	if len(v.members) == 0 {
		return view{}, contentTrouble(errors.New("its list has no member"))
	}
	slices.SortFunc(v.members, func(a, b topology.Member) int { return cmp.Compare(a.Name, b.Name) })
	return v, nil
}

// add takes one member; of it, what can be read. The error is a list that nobody
// can follow.
func (v *view) add(raw json.RawMessage) error {
	var b map[string]json.RawMessage
	name := ""
	if json.Unmarshal(raw, &b) == nil {
		name = text(b["name"])
	}
	if name == "" {
		v.fault("", "a member cannot be read and is left out: %s", watchers.Clip(string(raw)))
		return nil
	}
	m := topology.Member{
		Name: consul.LegalName(name), Role: "replica", State: text(b["state"]), APIURL: text(b["api_url"]),
		Timeline: topology.Timeline(number(b["timeline"], 32)), Tags: tags(b["tags"]),
	}
	if v.member(m.Name) != nil {
		v.fault(m.Name, "it is listed twice; the first counts")
		return nil
	}
	if m.Name != name {
		v.fault(m.Name, "its name %q cannot be used in balancers", watchers.Clip(name))
	}
	m.LSN, _ = topology.ParseLSN(text(b["lsn"])) // the word unknown is 0
	var trouble error
	if m.Address, trouble = address(text(b["host"]), b["port"]); trouble != nil {
		v.fault(m.Name, "%v", trouble)
	}
	switch role := text(b["role"]); role {
	case "leader", "standby_leader":
		if v.leader != "" {
			return fmt.Errorf("its list has two leaders, %s and %s", v.leader, m.Name)
		}
		v.leader, v.standby = m.Name, role == "standby_leader"
		m.Role = "primary"
		if v.standby {
			m.Role = role
		}
	case "sync_standby", "quorum_standby":
		v.sync = append(v.sync, m.Name)
	case "replica":
	default:
		v.fault(m.Name, "unknown role %q", watchers.Clip(role))
	}
	v.members, v.papers[m.Name] = append(v.members, m), paper(b)
	return nil
}

func (v *view) fault(member, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if member != "" {
		text = "member " + member + ": " + text
	}
	v.faults = append(v.faults, text)
}

// contradicts reports whether the list speaks against a leader: it shows another
// one, or shows this member without the key. A list that lacks the member says
// nothing about the key: Patroni shows a leader only by its member's entry.
func (v *view) contradicts(leader string) bool {
	return v.leader != leader && (v.leader != "" || v.member(leader) != nil)
}

func (v *view) member(name string) *topology.Member {
	i := slices.IndexFunc(v.members, func(m topology.Member) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &v.members[i]
}

// address is where a member's PostgreSQL listens.
func address(host string, port json.RawMessage) (topology.Address, error) {
	at := uint16(defaultPort)
	if port != nil {
		at = uint16(number(port, 16))
	}
	return watchers.MemberAddress(host, at)
}

// tags reads Patroni's tags as texts: true becomes "true", 10 becomes "10". A
// tag that is null is absent.
func tags(raw json.RawMessage) map[string]string {
	var values map[string]json.RawMessage
	if json.Unmarshal(raw, &values) != nil || len(values) == 0 {
		return nil
	}
	out := make(map[string]string, len(values))
	for k, v := range values {
		var s string
		switch {
		case string(v) == "null":
		case json.Unmarshal(v, &s) == nil:
			out[k] = s
		default:
			out[k] = string(v)
		}
	}
	return out
}

// text is a string's content; anything else is empty, which is unknown.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
