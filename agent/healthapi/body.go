package healthapi

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// nodeBody has Patroni's keys, absent where nothing is known, and the reason.
type nodeBody struct {
	State            string         `json:"state"`
	Role             string         `json:"role"`
	PostmasterStart  string         `json:"postmaster_start_time,omitempty"`
	ServerVersion    int            `json:"server_version,omitempty"`
	XLog             any            `json:"xlog,omitempty"`
	Timeline         uint32         `json:"timeline,omitempty"`
	ReplicationState string         `json:"replication_state,omitempty"`
	Pause            bool           `json:"pause,omitempty"`
	Unlocked         bool           `json:"cluster_unlocked,omitempty"`
	DCSLastSeen      int64          `json:"dcs_last_seen,omitempty"`
	Tags             map[string]any `json:"tags,omitempty"`
	SystemIdentifier string         `json:"database_system_identifier,omitempty"`
	Patroni          patroniBody    `json:"patroni"`
	Reason           reasonBody     `json:"reason"`
}

type patroniBody struct {
	Version string `json:"version"`
	Scope   string `json:"scope"`
	Name    string `json:"name"`
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

type errorBody struct {
	Error string `json:"error"`
}

// encode writes JSON on one line. The bodies hold no value that JSON refuses.
func encode(body any) []byte {
	b, err := json.Marshal(body)
	if err != nil {
		return []byte("{}\n")
	}
	return append(b, '\n')
}

func newReasonBody(r topology.Reason) reasonBody {
	b := reasonBody{Code: r.Code, Text: r.Text, Severity: r.Code.Info().Severity}
	if !r.Since.IsZero() {
		b.Since = &r.Since
	}
	return b
}

func (s *Server) nodeBody(sub *subject, a answer) nodeBody {
	b := nodeBody{
		State: state(s, sub), Role: role(sub),
		Tags:    tags(sub.node.Tags),
		Patroni: patroniBody{Version: s.opts.Version, Scope: sub.ref.Cluster, Name: sub.ref.Node},
		Reason:  newReasonBody(a.reason),
	}
	if id := sub.cluster.SystemID; id != 0 {
		b.SystemIdentifier = strconv.FormatUint(id, 10)
	}
	b.addAuthority(sub)
	if p := sub.facts.Probe; p != nil {
		b.addProbe(p)
	}
	return b
}

func (b *nodeBody) addAuthority(sub *subject) {
	if auth := sub.cluster.Authority; auth != nil {
		b.Pause = auth.Pause == topology.Yes
		b.Unlocked = auth.Leader == ""
	}
	for _, src := range sub.cluster.Sources {
		if src.Source.Kind == topology.SourceConsul && src.OKAt != 0 {
			b.DCSLastSeen = max(b.DCSLastSeen, sub.now.WallAt(src.OKAt).Unix())
		}
	}
}

func (b *nodeBody) addProbe(p *topology.Probe) {
	b.ServerVersion = p.ServerVersion
	b.Timeline = uint32(p.Timeline)
	if p.SystemID != 0 {
		b.SystemIdentifier = strconv.FormatUint(p.SystemID, 10)
	}
	if !p.StartedAt.IsZero() {
		b.PostmasterStart = stamp(p.StartedAt)
	}
	switch p.InRecovery {
	case topology.No:
		b.XLog = primaryXLog{Location: uint64(p.WriteLSN)}
	case topology.Yes:
		x := replicaXLog{Received: uint64(p.ReceiveLSN), Replayed: uint64(p.ReplayLSN), Paused: p.ReplayPaused == topology.Yes}
		if !p.ReplayedAt.IsZero() {
			t := stamp(p.ReplayedAt)
			x.Timestamp = &t
		}
		b.XLog = x
		if p.Receiver.Streaming == topology.Yes {
			b.ReplicationState = "streaming"
		}
	case topology.Unknown:
	}
}

// stamp writes a time as Patroni does: with a blank and a numeric zone.
func stamp(t time.Time) string { return t.Format("2006-01-02 15:04:05.000000-07:00") }

// state is Patroni's word for what is known over SQL.
func state(s *Server, sub *subject) string {
	if sub.decided() && s.health(sub).ok {
		return "running"
	}
	if f := sub.facts.Failure; f != nil && sub.facts.FailingAt != 0 {
		switch f.Class {
		case topology.FailRefused, topology.FailReset:
			return "stopped"
		case topology.FailStarting:
			return "starting"
		case topology.FailShutdown:
			return "stopping"
		default: // silence, or no word on whether it runs
		}
	}
	return "unknown"
}

// role is from SQL; where SQL said nothing, Patroni's own word, else "unknown".
func role(sub *subject) string {
	switch sub.facts.InRecovery {
	case topology.No:
		return "primary"
	case topology.Yes:
		if a := sub.cluster.Authority; a != nil && a.StandbyCluster && a.Leader == sub.ref.Node {
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
