package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Settings say how one cluster is published.
type Settings struct {
	// Service is its name in Consul; see topology.CheckLabel.
	Service string
	// WritePool and ReadPool are the pools whose verdicts count: on the primary, and
	// on all others. Empty: the first of the mode.
	WritePool, ReadPool string
	Tags                []string // of the user's; see topology.CheckServiceTag
	// Master gives the primary the tag master too, as Patroni does.
	Master bool

	// These are for local publishing alone.
	Node            string        // the node on this host
	Sidecar         bool          // register a sidecar proxy with it
	TTL, PrimaryTTL time.Duration // after which a check that is not fed turns critical
	publisher       string        // the mark of Options.Owner
}

// Never is the TTL of a check that stays as it is when nobody feeds it.
const Never = 365 * 24 * time.Hour

// The roles that an instance may have, in its meta and but for RoleUnknown as a tag.
const (
	RolePrimary       = "primary"
	RoleReplica       = "replica"
	RoleStandbyLeader = "standby-leader"
	RoleUnknown       = "unknown"
)

// The status of a check, in Consul's words.
const (
	Passing  = "passing"
	Warning  = "warning"
	Critical = "critical"
)

// The classes of lag. A number would be another write with each probe.
const (
	lagOK      = "ok"
	lagBehind  = "behind"
	lagUnknown = "unknown"
)

const tagMaster = "master"

// Instance is what is to be published of one node.
type Instance struct {
	Cluster, Node string
	Address       topology.Address
	Role          string
	Reads         bool   // a primary that serves the read pool, for want of replicas
	Sync          string // sync, quorum or async; empty: not known, or no standby
	Zone          string
	Timeline      topology.Timeline
	Version       int // of the server, such as 150018; 0: not known
	Lag           string
	Reason        topology.Reason
	Weight        int // of new sessions, 1 to 10
	Status        string
	// KeepPrimary and KeepOther say that what stands is held: of an instance that
	// stands as primary, and of any other or none.
	KeepPrimary, KeepOther bool
}

// Registration is an instance as Consul has it, or shall have it.
type Registration struct {
	ID, Service       string
	Address           string
	Port              int
	Tags              []string
	Meta              map[string]string
	Passing, Warning  int // weights
	EnableTagOverride bool
	Check             Check
	Sidecar           bool // local: it has a sidecar proxy
	// outdated: it is to be written again although nothing differs.
	outdated bool
}

// Check is the one check of an instance.
type Check struct {
	Status string // empty: there is none
	Output string
	Notes  string
	TTL    time.Duration // local; zero in what was read
}

// ID is the ID of a node's instance, which no other program uses.
func ID(cluster, node string) string { return idPrefix(cluster) + node }

func idPrefix(cluster string) string { return "pgsteer:" + cluster + ":" }

// Keys of an instance's meta.
const (
	metaRole      = "role"
	metaSync      = "sync"
	metaTimeline  = "timeline"
	metaVersion   = "version"
	metaReason    = "reason"
	metaPublisher = "publisher"
)

// ownerMark is what an instance's meta says of its owner: as long for every owner, since
// Consul refuses long values, and without a path of the host, since all of Consul reads it.
func ownerMark(owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8])
}

// registration writes an instance down, the same on every agent.
func (in Instance) registration(s Settings) Registration {
	r := Registration{
		ID: ID(in.Cluster, in.Node), Service: s.Service, Address: in.Address.Host, Port: int(in.Address.Port), Tags: in.tags(s),
		Passing: in.Weight, Warning: 1, Sidecar: s.Sidecar,
		Meta:  map[string]string{"cluster": in.Cluster, "node": in.Node, metaRole: in.Role, metaReason: string(in.Reason.Code)},
		Check: s.check(in.Role, in.Status, in.output()),
	}
	for key, value := range map[string]string{metaSync: in.Sync, "zone": in.Zone, "lag_class": in.Lag, metaVersion: version(in.Version), metaPublisher: s.publisher} {
		if value != "" {
			r.Meta[key] = value
		}
	}
	if in.Timeline != 0 {
		r.Meta[metaTimeline] = strconv.FormatUint(uint64(in.Timeline), 10)
	}
	return r
}

// check is the check of an instance. Consul does not tell its TTL, so the notes do.
func (s Settings) check(role, status, output string) Check {
	c := Check{Status: status, Output: output, Notes: "written by pgsteer", TTL: s.TTL}
	if role == RolePrimary {
		c.TTL = s.PrimaryTTL
	}
	if c.TTL > 0 && c.TTL < Never {
		c.Notes += "; critical when it has not said anything for " + c.TTL.String()
	}
	return c
}

func (in Instance) output() string {
	if in.Reason.Text == "" {
		return string(in.Reason.Code)
	}
	return string(in.Reason.Code) + ": " + in.Reason.Text
}

// tags: the role first. A zone that cannot be a label of DNS is in the meta alone.
func (in Instance) tags(s Settings) []string {
	var tags []string
	if in.Role != RoleUnknown {
		tags = append(tags, in.Role)
	}
	if in.Role == RolePrimary && s.Master {
		tags = append(tags, tagMaster)
	}
	if in.Role == RolePrimary && in.Reads {
		tags = append(tags, RoleReplica)
	}
	if in.Sync != "" {
		tags = append(tags, in.Sync)
	}
	if zone := topology.ZoneTag + strings.ToLower(in.Zone); in.Zone != "" && topology.CheckLabel(zone) == nil {
		tags = append(tags, zone)
	}
	return append(tags, s.Tags...)
}

// version writes 150018 as 15.18, and nothing for what is not known.
func version(v int) string {
	if v == 0 {
		return ""
	}
	return strconv.Itoa(v/10000) + "." + strconv.Itoa(v%10000)
}

// carry takes over what stands of what is not known now: a pgsteer that has just
// been started has not asked everything yet.
func (in Instance) carry(standing Registration) Instance {
	if in.Address.IsZero() {
		in.Address = topology.Address{Host: standing.Address, Port: uint16(standing.Port)}
	}
	if in.Timeline == 0 {
		n, _ := strconv.ParseUint(standing.Meta[metaTimeline], 10, 32)
		in.Timeline = topology.Timeline(n)
	}
	if in.Sync == "" && in.Role == RoleReplica && slices.Contains(parts, standing.Meta[metaSync]) {
		in.Sync = standing.Meta[metaSync]
	}
	if major, minor, ok := strings.Cut(standing.Meta[metaVersion], "."); ok && in.Version == 0 {
		a, _ := strconv.Atoi(major)
		b, _ := strconv.Atoi(minor)
		in.Version = a*10000 + b
	}
	return in
}

// parts are the parts that a standby may have in commits.
var parts = []string{string(topology.RoleSync), string(topology.RoleQuorum), string(topology.RoleAsync)}
