package consul

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// scopeState is what one recursive read of a scope says.
type scopeState struct {
	authority topology.Authority
	documents topology.Documents
	nodes     []topology.Node
	// leaderKey identifies the lock: holder, session and when it was taken.
	leaderKey leaderKey
	faults    []fault
	keys      int // of the scope; 0: there is no such scope
}

// leaderName is the name of the leader key below a scope's prefix.
const leaderName = "leader"

// fault is something in the scope that could not be used.
type fault struct {
	key string // full key
	err string
}

// leaderKey is the leader key, reduced. The zero value: the key is absent.
type leaderKey struct {
	Holder, Session string
	ModifyIndex     uint64
}

func reduceLeader(p *api.KVPair) leaderKey {
	if p == nil {
		return leaderKey{}
	}
	return leaderKey{Holder: string(p.Value), Session: p.Session, ModifyIndex: p.ModifyIndex}
}

// parseScope reads the keys below prefix ("service/main/"), after a picture that
// had the members before. It is pure, and what it cannot read leaves the rest as
// it is.
func parseScope(prefix string, pairs api.KVPairs, before ...topology.Member) scopeState {
	r := scopeReader{prefix: prefix, sessions: map[string]string{}}
	for _, p := range pairs {
		if key, ok := strings.CutPrefix(p.Key, prefix); ok {
			r.s.keys++
			r.read(key, p)
		}
	}
	r.finish(before)
	return r.s
}

type scopeReader struct {
	s        scopeState
	prefix   string
	sessions map[string]string // of the members' keys
	legacy   *api.KVPair       // optime/leader
	status   bool
	groups   []string // of Citus, whose keys lie below the scope's
}

func (r *scopeReader) read(key string, p *api.KVPair) {
	switch key {
	case leaderName:
		r.s.leaderKey = reduceLeader(p)
		r.s.authority.Leader = r.name(p.Key, string(p.Value))
	case "config":
		r.config(p)
	case "status":
		r.status = true
		r.optime(p)
	case "optime/leader":
		r.legacy = p
	case "sync":
		r.sync(p)
	case "history":
		r.history(p)
	case "initialize":
		r.initialize(p)
	case "failover", "failsafe":
		// A wish of the operator, and whom the leader asks when Consul is away (left
		// behind when the mode is switched off): neither says who leads now.
		r.aside(key, p)
	default:
		r.below(key, p)
	}
}

// below reads a key that lies deeper than the others.
func (r *scopeReader) below(key string, p *api.KVPair) {
	folder, name, ok := strings.Cut(key, "/")
	switch {
	case !ok || name == "":
	case folder == "members" && !strings.Contains(name, "/"):
		r.member(name, p)
	case isGroup(folder) && !slices.Contains(r.groups, folder):
		r.groups = append(r.groups, folder)
	}
}

// isGroup tells the number of a Citus group as Patroni writes it.
func isGroup(s string) bool {
	n, err := strconv.ParseUint(s, 10, 63)
	return err == nil && strconv.FormatUint(n, 10) == s
}

func (r *scopeReader) fault(key, format string, args ...any) {
	r.s.faults = append(r.s.faults, fault{key: key, err: fmt.Sprintf(format, args...)})
}

// name makes a member's name usable in every balancer. Patroni allows anything;
// a name that is not legal gets a stable, distinct one.
func (r *scopeReader) name(key, s string) string {
	legal := LegalName(s)
	if legal != s && s != "" {
		r.fault(key, "name %q cannot be used in balancers and is called %s here", watchers.Clip(s), legal)
	}
	return legal
}

func (r *scopeReader) member(name string, p *api.KVPair) {
	m, errs := parseMember(r.name(p.Key, name), p.Value)
	for _, err := range errs {
		r.fault(p.Key, "%v", err)
	}
	if m.Role != "" && !slices.Contains(knownRoles(), m.Role) {
		r.fault(p.Key, "unknown role %q", watchers.Clip(m.Role))
	}
	if m.State != "" && !knownState(m.State) {
		r.fault(p.Key, "unknown state %q", watchers.Clip(m.State))
	}
	r.sessions[m.Name] = p.Session
	r.memberDocument(m.Name, p)
	r.s.authority.Members = append(r.s.authority.Members, m)
}

// knownRoles are the words of Patroni 2 to 4, master folded into primary.
func knownRoles() []string {
	return []string{"primary", "replica", "standby_leader", "promoted", "demoted", "uninitialized"}
}

// knownState tells the words of Patroni 2 to 4 from others. The last two come
// from proxies that copy the REST interface into the key.
func knownState(s string) bool {
	if strings.HasPrefix(s, "restart failed") {
		return true // Patroni 3 adds why
	}
	return slices.Contains([]string{
		"initializing new cluster", "initdb failed", "running custom bootstrap script", "custom bootstrap failed",
		"starting after custom bootstrap", "creating replica", "starting", "start failed", "running", "restarting",
		"stopping", "stop failed", "stopped", "crashed", "streaming", "in archive recovery",
	}, s)
}

// optime reads the status key: an object, or a bare number.
func (r *scopeReader) optime(p *api.KVPair) {
	r.s.authority.OptimeIndex = p.ModifyIndex
	var status struct {
		Optime json.RawMessage `json:"optime"`
	}
	raw := bytes.TrimSpace(p.Value)
	if json.Unmarshal(raw, &status) == nil {
		raw = status.Optime
	}
	if text := strings.Trim(string(raw), `" `); text != "" && text != "null" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			r.fault(p.Key, "optime is no whole number: %s", watchers.Clip(text))
			return
		}
		r.s.authority.Optime = topology.LSN(n)
	}
}

func (r *scopeReader) sync(p *api.KVPair) {
	var sync struct {
		SyncStandby *string `json:"sync_standby"`
	}
	if len(bytes.TrimSpace(p.Value)) == 0 {
		return
	}
	if err := json.Unmarshal(p.Value, &sync); err != nil {
		r.fault(p.Key, "the value cannot be read: %s", watchers.Clip(string(p.Value)))
		return
	}
	if sync.SyncStandby == nil {
		return
	}
	for name := range strings.SplitSeq(*sync.SyncStandby, ",") {
		if name = strings.TrimSpace(name); name != "" {
			r.s.authority.SyncStandbys = append(r.s.authority.SyncStandbys, LegalName(name))
		}
	}
}

// history raises the timeline to the one after the newest entry: each entry
// begins with the timeline that ended.
func (r *scopeReader) history(p *api.KVPair) {
	var entries [][]json.RawMessage
	if err := json.Unmarshal(p.Value, &entries); err != nil {
		r.fault(p.Key, "the value is no list of lists: %s", watchers.Clip(string(p.Value)))
		return
	}
	if entries != nil { // not null
		r.s.documents.History = p.Value
	}
	for _, e := range entries {
		if len(e) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(e[0]), 10, 32)
		if err != nil || n+1 > 1<<32-1 {
			r.fault(p.Key, "%s is no timeline", watchers.Clip(string(e[0])))
			continue
		}
		r.s.authority.Timeline = max(r.s.authority.Timeline, topology.Timeline(n+1))
	}
}

func (r *scopeReader) initialize(p *api.KVPair) {
	text := strings.TrimSpace(string(p.Value))
	if text == "" {
		return // the cluster is being bootstrapped
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.fault(p.Key, "the value is no system identifier: %s", watchers.Clip(text))
		return
	}
	r.s.authority.SystemID = n
}

// finish derives what needs more than one key.
func (r *scopeReader) finish(before []topology.Member) {
	a := &r.s.authority
	if !r.status && r.legacy != nil {
		r.optime(r.legacy)
	}
	slices.SortFunc(a.Members, func(x, y topology.Member) int { return strings.Compare(x.Name, y.Name) })
	for _, m := range a.Members {
		a.Timeline = max(a.Timeline, m.Timeline)
	}
	a.Members = r.distinct(a.Members, before)
	for _, m := range a.Members {
		if !m.Address.IsZero() {
			r.s.nodes = append(r.s.nodes, topology.Node{Name: m.Name, Address: m.Address, Tags: m.Tags})
		}
	}
	for i, s := range a.SyncStandbys {
		a.SyncStandbys[i] = spelled(s, a.Members)
	}
	if len(r.groups) > 0 && len(a.Members) == 0 {
		r.fault(r.prefix, "this is a Citus cluster of the groups %s, each of which is a cluster here with its own patroni.group",
			strings.Join(r.groups, ", "))
	}
	a.SessionAgrees = r.agreement()
}

// agreement compares the sessions of the leader key and of its holder's member
// key; without a member key there is nothing to compare.
func (r *scopeReader) agreement() topology.Tri {
	if r.s.authority.Leader == "" {
		return topology.Unknown
	}
	member, ok := r.sessions[r.s.authority.Leader]
	if !ok {
		return topology.Unknown
	}
	return topology.Bool(member != "" && member == r.s.leaderKey.Session)
}

// spelled returns a name as the member spells it: the sync key's names match
// regardless of case.
func spelled(name string, members []topology.Member) string {
	for _, m := range members {
		if strings.EqualFold(m.Name, name) {
			return m.Name
		}
	}
	return name
}

// LegalName returns the name under which pgsteer knows a Patroni member: the
// name itself where topology.CheckName allows it, else its legal characters and
// a part of its hash, so that two members never share one.
func LegalName(s string) string {
	if s == "" || topology.CheckName(s) == nil {
		return s
	}
	const keep = 40
	out := make([]byte, 0, keep)
	for i := 0; i < len(s) && len(out) < keep; i++ {
		c := s[i]
		if alnum := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'; alnum || c == '.' || c == '_' {
			out = append(out, c)
		} else {
			out = append(out, '-')
		}
	}
	sum := sha256.Sum256([]byte(s))
	return "m-" + strings.Trim(string(out), "-._") + "-" + hex.EncodeToString(sum[:4])
}
