package simulate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// keys are Patroni's keys in Consul as they stand now.
type keys struct {
	prefix string
	values map[string]any    // by key of a file, merged over the steps
	index  uint64            // of the last write
	wrote  map[string]uint64 // by key in Consul, the index of its last write
	told   map[string]string // by key in Consul, the value of its last write
}

// keyNames are the keys below kv. The last two of a file are no keys of their
// own but the sessions that hold the others.
var keyNames = []string{
	"leader", "status", "config", "members", "sync", "history", "initialize", "failsafe", "leader_session", "sessions",
}

// session is the session by which a member holds its key, unless a file says
// otherwise.
func session(member string) string { return "session-of-" + member }

// keysChange reads what a step says of the keys.
func keysChange(v config.Value) map[string]any {
	out := make(map[string]any)
	for key, below := range v.Entries() {
		if !slices.Contains(keyNames, key) {
			below.Fault("unknown key: %s", config.UnknownWord(key, keyNames))
			continue
		}
		out[key] = plain(below)
	}
	for _, key := range []string{"members", "sessions"} {
		if _, isMap := out[key].(map[string]any); out[key] != nil && !isMap {
			v.Key(key).Fault("%s is a map by member", key)
			delete(out, key)
		}
	}
	return out
}

// plain turns a value into what JSON knows: nil, text, json.Number, bool, map
// and list.
func plain(v config.Value) any {
	n := v.Node()
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any)
		for key, below := range v.Entries() {
			m[key] = plain(below)
		}
		return m
	case yaml.SequenceNode:
		list := []any{}
		for _, below := range v.Elements() {
			list = append(list, plain(below))
		}
		return list
	default: // a single value
	}
	switch n.Tag {
	case "!!null":
		return nil
	case "!!bool":
		return n.Value == "true" || n.Value == "True" || n.Value == "TRUE"
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value)
		}
	}
	return n.Value
}

// merge lays a change over what stood: maps key by key, null deletes, anything
// else replaces. A member without address is told apart from one whose address
// is left to us, so there null stays.
func merge(was, change any) any {
	c, isMap := change.(map[string]any)
	if !isMap {
		return change
	}
	out := make(map[string]any)
	if m, ok := was.(map[string]any); ok {
		maps.Copy(out, m)
	}
	for key, value := range c {
		if out[key] = merge(out[key], value); value == nil && key != "conn_url" && key != "api_url" {
			delete(out, key)
		}
	}
	return out
}

// apply takes a step's change. Every key that the step names is written, also
// with the value it had; the leader's session follows the leader.
func (k *keys) apply(change map[string]any) {
	if _, named := change["leader"]; named {
		delete(k.values, "leader_session")
	}
	k.index++
	for key, value := range change {
		k.values[key] = merge(k.values[key], value)
		k.wrote[key] = k.index
	}
	if members, ok := change["members"].(map[string]any); ok {
		for name := range members {
			k.wrote["members/"+name] = k.index
		}
	}
}

func (k *keys) leader() string {
	if k.values["leader"] == nil {
		return ""
	}
	return fmt.Sprint(k.values["leader"])
}

// pairs are the keys as Consul would list them.
func (k *keys) pairs(w *world) api.KVPairs {
	sessions, _ := k.values["sessions"].(map[string]any)
	sessionOf := func(member string) string {
		if s, told := sessions[member]; told {
			return valueText(s)
		}
		return session(member)
	}
	var out api.KVPairs
	add := func(key, value, session string) {
		if k.told[key] != value {
			k.index++
			k.told[key], k.wrote[key] = value, k.index
		}
		out = append(out, &api.KVPair{Key: k.prefix + key, Value: []byte(value), Session: session, ModifyIndex: max(k.wrote[key], 1)})
	}
	if leader := k.leader(); leader != "" {
		held := sessionOf(leader)
		if s := k.values["leader_session"]; s != nil {
			held = valueText(s)
		}
		add("leader", leader, held)
	}
	for _, key := range []string{"config", "failsafe", "history", "status", "sync"} {
		if v := k.values[key]; v != nil {
			add(key, valueText(v), "")
		}
	}
	if v, told := k.values["initialize"]; !told {
		add("initialize", strconv.FormatUint(defaultSystemID, 10), "")
	} else if v != nil {
		add("initialize", valueText(v), "")
	}
	members := k.members(w)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		add("members/"+name, valueText(members[name]), sessionOf(name))
	}
	return out
}

// valueText is a value as it stands in Consul: texts as they are, the rest as JSON.
func valueText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// members are the members' values. Those of a file get an address when they
// have none; without any, every server is a member as its own Patroni would
// describe it.
func (k *keys) members(w *world) map[string]any {
	out := make(map[string]any)
	if _, told := k.values["members"]; !told {
		for name := range w.servers {
			out[name] = w.member(name)
		}
		return out
	}
	given, _ := k.values["members"].(map[string]any)
	for name, v := range given {
		m, isMap := v.(map[string]any)
		if !isMap {
			out[name] = v
			continue
		}
		m = maps.Clone(m)
		if _, has := m["conn_url"]; !has {
			m["conn_url"] = connURL(w.addresses[name])
		}
		if _, has := m["api_url"]; !has {
			m["api_url"] = apiURL(w.addresses[name])
		}
		out[name] = m
	}
	return out
}

// member is what Patroni writes of a healthy node.
func (w *world) member(name string) map[string]any {
	p := w.probe(name)
	m := map[string]any{
		"role": "primary", "state": "running", "timeline": p.Timeline, "xlog_location": uint64(p.WriteLSN),
		"conn_url": connURL(w.addresses[name]), "api_url": apiURL(w.addresses[name]),
	}
	if p.InRecovery == topology.Yes {
		m["role"], m["xlog_location"] = "replica", uint64(p.ReplayLSN)
		if p.Receiver.Streaming != topology.No {
			m["replication_state"] = "streaming"
		}
	}
	return m
}

func connURL(a topology.Address) string { return "postgres://" + a.String() + "/postgres" }

func apiURL(a topology.Address) string {
	return "http://" + topology.Address{Host: a.Host, Port: 8008}.String() + "/patroni"
}

// syncStandbys are the standbys that the sync key names, with the state that
// PostgreSQL shows for them. Without Patroni there are none.
func (k *keys) syncStandbys() map[string]string {
	if k == nil {
		return nil
	}
	sync, _ := k.values["sync"].(map[string]any)
	cfg, _ := k.values["config"].(map[string]any)
	state := "sync"
	if cfg["synchronous_mode"] == "quorum" {
		state = "quorum"
	}
	out := make(map[string]string)
	for name := range strings.SplitSeq(fmt.Sprint(sync["sync_standby"]), ",") {
		out[strings.TrimSpace(name)] = state
	}
	return out
}

// lock is the leader key as the watch on it compares it.
type lock struct {
	holder, session string
	wrote           uint64
}

func (k *keys) lock() lock {
	return lock{k.leader(), valueText(k.values["leader_session"]), k.wrote["leader"]}
}
