package consul

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// This file reads what is kept for those who ask for it and no rule reads. What
// cannot be read is absent, as for Patroni, and no fault: nothing depends on it.

// aside reads the keys that say nothing about who leads.
func (r *scopeReader) aside(key string, p *api.KVPair) {
	d := &r.s.documents
	switch key {
	case "failsafe":
		d.Failsafe = object(p.Value)
	case "failover":
		d.Switchover = switchover(p.Value)
	}
}

// switchover reads the failover key. Only its newer form, an object, may have a
// schedule; a wish without one is carried out at once.
func switchover(value []byte) *topology.Switchover {
	var f struct {
		Leader, Member string
		At             string `json:"scheduled_at"`
	}
	if json.Unmarshal(value, &f) != nil || f.At == "" {
		return nil
	}
	return &topology.Switchover{At: f.At, From: f.Leader, To: f.Member}
}

// memberDocument reads of a member's key what Member has no place for.
func (r *scopeReader) memberDocument(name string, p *api.KVPair) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(p.Value, &fields) != nil {
		return
	}
	if r.s.documents.Members == nil {
		r.s.documents.Members = make(map[string]topology.MemberDocument)
	}
	r.s.documents.Members[name] = MemberDocument(fields)
}

// MemberDocument reads the fields of a member's key. The entries of Patroni's
// /cluster have the same, but for positions, which are texts there.
func MemberDocument(fields map[string]json.RawMessage) topology.MemberDocument {
	var f faultList // see above: nobody is told
	return topology.MemberDocument{
		PendingRestart: truth(fields["pending_restart"]),
		RestartReason:  object(fields["pending_restart_reason"]), ScheduledRestart: object(fields["scheduled_restart"]),
		Replication: f.text(fields, "replication_state"),
		ReceiveLSN:  topology.LSN(f.number(fields, "receive_lsn", 64)), ReplayLSN: topology.LSN(f.number(fields, "replay_lsn", 64)),
	}
}

// object returns a value that is a JSON object, else nil.
func object(value []byte) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal(value, &o) != nil || o == nil {
		return nil
	}
	return value
}

// maxLag reads maximum_lag_on_failover as Patroni's parse_int does for whole
// numbers, also as a text.
func maxLag(raw json.RawMessage) *topology.Size {
	n, err := strconv.ParseInt(strings.Trim(string(raw), `" `), 10, 64)
	if err != nil {
		return nil
	}
	size := topology.Size(n)
	return &size
}
