package healthapi

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// nodeBody has Patroni's keys, absent where nothing is known, and the reason.
type nodeBody struct {
	State            string            `json:"state"`
	Role             string            `json:"role"`
	PostmasterStart  string            `json:"postmaster_start_time,omitempty"`
	ServerVersion    int               `json:"server_version,omitempty"`
	XLog             any               `json:"xlog,omitempty"`
	Timeline         uint32            `json:"timeline,omitempty"`
	Replication      []replicationBody `json:"replication,omitempty"`
	ReplicationState string            `json:"replication_state,omitempty"`
	SyncStandby      bool              `json:"sync_standby,omitempty"`
	QuorumStandby    bool              `json:"quorum_standby,omitempty"`
	Pause            bool              `json:"pause,omitempty"`
	Unlocked         bool              `json:"cluster_unlocked,omitempty"`
	DCSLastSeen      int64             `json:"dcs_last_seen,omitempty"`
	Tags             map[string]any    `json:"tags,omitempty"`
	restartBody
	SystemIdentifier string      `json:"database_system_identifier,omitempty"`
	Patroni          patroniBody `json:"patroni"`
	Reason           reasonBody  `json:"reason"`
}

// restartBody is what is known of a restart ahead.
type restartBody struct {
	Pending   bool            `json:"pending_restart,omitempty"`
	Reason    json.RawMessage `json:"pending_restart_reason,omitempty"`
	Scheduled json.RawMessage `json:"scheduled_restart,omitempty"`
}

// restart is the member's own word, as /cluster shows it; Patroni 3 tells no reason.
func (sub *subject) restart() restartBody {
	p := sub.paper()
	b := restartBody{Pending: p.PendingRestart, Scheduled: p.ScheduledRestart}
	if !sub.old() {
		b.Reason = p.RestartReason
	}
	return b
}

// ownRestart is the same as the node's own body shows it: the key also says of
// which start of the server the schedule is.
func (sub *subject) ownRestart() restartBody {
	b := sub.restart()
	var fields map[string]json.RawMessage
	if json.Unmarshal(b.Scheduled, &fields) == nil {
		delete(fields, "postmaster_start_time")
		b.Scheduled = encode(fields)
	}
	return b
}

type patroniBody struct {
	Version string `json:"version"`
	Scope   string `json:"scope"`
	Name    string `json:"name"`
}

type replicationBody struct {
	Name      string `json:"application_name"`
	State     string `json:"state"`
	SyncState string `json:"sync_state"`
}

type primaryXLog struct {
	Location uint64 `json:"location"`
}

type replicaXLog struct {
	Received  uint64  `json:"received_location"`
	Replayed  uint64  `json:"replayed_location"`
	Timestamp *string `json:"replayed_timestamp"`
	Paused    bool    `json:"paused"`
}

type reasonBody struct {
	Code     topology.Code     `json:"code,omitempty"`
	Text     string            `json:"text"`
	Severity topology.Severity `json:"severity,omitempty"`
	Since    *time.Time        `json:"since,omitempty"`
}

type poolBody struct {
	Cluster string           `json:"cluster"`
	Pool    string           `json:"pool"`
	Node    string           `json:"node"`
	Verdict topology.Verdict `json:"verdict"`
	Weight  int              `json:"weight,omitempty"`
	Reason  reasonBody       `json:"reason"`
}

func newReasonBody(r topology.Reason) reasonBody {
	b := reasonBody{Code: r.Code, Text: r.Text, Severity: r.Code.Info().Severity}
	if !r.Since.IsZero() {
		b.Since = &r.Since
	}
	return b
}

// describe is Patroni's description of itself, which is always 200.
func (s *Server) describe(sub *subject) answer {
	return answer{ok: true, reason: s.health(sub).reason}
}

func (s *Server) nodeBody(sub *subject, a answer) nodeBody {
	b := nodeBody{
		State: s.state(sub), Role: sub.role(),
		Tags:    tags(sub.node.Tags),
		Patroni: patroniBody{Version: s.opts.Version, Scope: sub.ref.Cluster, Name: sub.ref.Node},
		Reason:  newReasonBody(a.reason), restartBody: sub.ownRestart(),
	}
	if id := sub.cluster.SystemID; id != 0 {
		b.SystemIdentifier = strconv.FormatUint(id, 10)
	}
	if sub.old() && b.Role == "primary" {
		b.Role = "master"
	}
	b.addAuthority(sub)
	if b.State == running {
		b.addProbe(sub)
		part := s.part(sub)
		b.SyncStandby = b.Role == "replica" && part == topology.RoleSync
		b.QuorumStandby = b.Role == "replica" && part == topology.RoleQuorum
	}
	return b
}

func (b *nodeBody) addAuthority(sub *subject) {
	b.Pause = sub.authority().Pause == topology.Yes
	if sub.snapshot == nil || sub.snapshot.Authority.State == topology.AuthorityStateNone {
		return
	}
	b.Unlocked = !sub.dcs() || sub.snapshot.Authority.Leader == ""
	if at := sub.authoritySeen(); at != 0 {
		b.DCSLastSeen = sub.now.WallAt(at).Unix()
	}
}

// addProbe adds what PostgreSQL said of itself.
func (b *nodeBody) addProbe(sub *subject) {
	p := sub.facts.Probe
	if p == nil {
		return
	}
	b.ServerVersion = p.ServerVersion
	b.Timeline = uint32(p.Timeline)
	b.ReplicationState = sub.replicationState()
	if p.SystemID != 0 {
		b.SystemIdentifier = strconv.FormatUint(p.SystemID, 10)
	}
	if !p.StartedAt.IsZero() {
		b.PostmasterStart = stamp(p.StartedAt)
	}
	for _, st := range p.Standbys {
		b.Replication = append(b.Replication, replicationBody{st.Name, st.State, st.SyncState})
	}
	switch p.InRecovery {
	case topology.No:
		b.XLog = primaryXLog{Location: uint64(p.WriteLSN)}
	case topology.Yes:
		x := replicaXLog{Received: uint64(p.ReceiveLSN), Replayed: uint64(p.ReplayLSN), Paused: p.ReplayPaused == topology.Yes}
		x.Received = cmp.Or(x.Received, x.Replayed)
		if !p.ReplayedAt.IsZero() {
			t := stamp(p.ReplayedAt)
			x.Timestamp = &t
		}
		b.XLog = x
	case topology.Unknown:
	}
}

// stamp writes a time as Patroni (Python's str) does: with a blank, a numeric zone,
// and a fraction only where there is one.
func stamp(t time.Time) string {
	if t.Nanosecond() < int(time.Microsecond) {
		return t.Format("2006-01-02 15:04:05-07:00")
	}
	return t.Format("2006-01-02 15:04:05.000000-07:00")
}

// running is Patroni's word for a server that answers.
const running = "running"

// state is Patroni's word for what is known over SQL. Where the server cannot be
// asked, Patroni's own word on it counts, unless that is out of date.
func (s *Server) state(sub *subject) string {
	if sub.decided() && s.health(sub).ok {
		return running
	}
	f := sub.facts.Failure
	if f == nil || sub.facts.FailingAt == 0 {
		return "unknown"
	}
	if m := sub.facts.Member; m != nil && !slices.Contains([]string{"", running, "streaming", "in archive recovery"}, m.State) {
		return m.State
	}
	switch f.Class {
	case topology.FailRefused, topology.FailReset:
		return "stopped"
	case topology.FailStarting:
		return "starting"
	case topology.FailShutdown:
		return "stopping"
	default: // silence, or no word on whether it runs
		return "unknown"
	}
}

// role is from SQL; where SQL said nothing, Patroni's own word, else "unknown".
func (sub *subject) role() string {
	switch sub.facts.InRecovery {
	case topology.No:
		return "primary"
	case topology.Yes:
		if sub.standbyLeader() {
			return "standby_leader"
		}
		return "replica"
	default:
		if m := sub.facts.Member; m != nil && m.Role != "" {
			return m.Role
		}
		return "unknown"
	}
}

// tags gives booleans and numbers their JSON types back, as Patroni shows them.
func tags(in map[string]string) map[string]any {
	out := make(map[string]any, len(in))
	for k, v := range in {
		out[k] = v
		if v == "true" || v == "false" || v != "" && (v[0] == '-' || v[0] >= '0' && v[0] <= '9') && json.Valid([]byte(v)) {
			out[k] = json.RawMessage(v)
		}
	}
	return out
}
