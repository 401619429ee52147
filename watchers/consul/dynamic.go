package consul

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// config reads Patroni's dynamic configuration.
func (r *scopeReader) config(p *api.KVPair) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(p.Value, &fields); err != nil {
		r.fault(p.Key, "the value is no JSON object, so pause, failsafe and timing are unknown")
		return
	}
	if fields != nil { // not null
		r.s.documents.Config, r.s.documents.MaxLag = p.Value, maxLag(fields["maximum_lag_on_failover"])
	}
	a := &r.s.authority
	a.Pause = topology.Bool(truth(fields["pause"]))
	a.Failsafe = topology.Bool(truth(fields["failsafe_mode"]))
	a.StandbyCluster = standbyCluster(fields["standby_cluster"])
	if !a.StandbyCluster { // there Patroni leaves synchronous mode out of account
		a.SyncMode = syncMode(fields["synchronous_mode"])
	}
	a.TTL = r.seconds(p.Key, fields, "ttl")
	a.LoopWait = r.seconds(p.Key, fields, "loop_wait")
	a.RetryTimeout = r.seconds(p.Key, fields, "retry_timeout")
}

func (r *scopeReader) seconds(key string, fields map[string]json.RawMessage, field string) time.Duration {
	raw, ok := fields[field]
	if !ok {
		return 0
	}
	f, err := strconv.ParseFloat(strings.Trim(string(raw), `" `), 64)
	if err != nil || f < 0 || f > 1e6 {
		r.fault(key, "%s is no number of seconds: %s", field, watchers.Clip(string(raw)))
		return 0
	}
	return time.Duration(f * float64(time.Second))
}

// truth reads a switch as Patroni's parse_bool does.
func truth(raw json.RawMessage) bool {
	switch strings.ToLower(strings.Trim(string(raw), `" `)) {
	case "true", "yes", "on", "1":
		return true
	}
	return false
}

// standbyCluster reports whether the section makes the cluster follow another
// one: it is an object with any of three fields set, as in Patroni.
func standbyCluster(raw json.RawMessage) bool {
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil {
		return false
	}
	return slices.ContainsFunc([]string{"host", "port", "restore_command"}, func(field string) bool {
		switch v := o[field].(type) {
		case nil:
			return false
		case string:
			return v != ""
		case bool:
			return v
		case float64:
			return v != 0
		default: // a list or an object
			return true
		}
	})
}

func syncMode(raw json.RawMessage) string {
	switch {
	case strings.EqualFold(strings.Trim(string(raw), `" `), "quorum"):
		return "quorum"
	case truth(raw):
		return "sync"
	default:
		return ""
	}
}
