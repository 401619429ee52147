package simulate

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// observation is a raw observation of a step.
type observation struct {
	topology.Observation
	here bool // no address is written: the one that the node has then
}

// nodeName is the node that the observation speaks of, if any.
func (o *observation) nodeName() string {
	switch {
	case o.Probe != nil:
		return o.Probe.Node
	case o.Failure != nil:
		return o.Failure.Node
	case o.Port != nil:
		return o.Port.Node
	}
	return ""
}

// locate makes the observation one of an address.
func (o *observation) locate(a topology.Address) {
	switch {
	case o.Probe != nil:
		p := *o.Probe
		p.Address, o.Probe = a, &p
	case o.Failure != nil:
		f := *o.Failure
		f.Address, o.Failure = a, &f
	case o.Port != nil:
		p := *o.Port
		p.Address, o.Port = a, &p
	}
}

// observations reads the raw observations of a step.
func (f *file) observations(v config.Value, at time.Duration) []observation {
	var all []observationFile
	if !v.Into(&all) {
		return nil
	}
	var out []observation
	for i, below := range v.Elements() {
		if i >= len(all) {
			break // the file is too large, and that has been said
		}
		out = append(out, f.observation(below, all[i], at))
	}
	return out
}

// observationFile is an observation as it is written. The times are counted
// from the start; wall clocks are written only where they differ from it.
type observationFile struct {
	Cluster   *text          `yaml:"cluster"`
	Source    sourceID       `yaml:"source"`
	Seq       uint64         `yaml:"seq"`
	At        *span          `yaml:"at"`
	Asked     *span          `yaml:"asked"`
	Wall      *time.Time     `yaml:"wall"`
	AskedWall *time.Time     `yaml:"asked_wall"`
	Failure   *failureFile   `yaml:"failure"`
	Probe     *probeFile     `yaml:"probe"`
	Nodes     *nodesFile     `yaml:"nodes"`
	Authority *authorityFile `yaml:"authority"`
	Local     *localFile     `yaml:"local"`
	Port      *portFile      `yaml:"port"`
}

type failureFile struct {
	Class   text              `yaml:"class"`
	Text    text              `yaml:"text"`
	Node    *text             `yaml:"node"`
	Address *topology.Address `yaml:"address"`
	Asked   text              `yaml:"asked"`
	Port    uint16            `yaml:"port"`
}

type probeFile struct {
	Node          *text             `yaml:"node"`
	Address       *topology.Address `yaml:"address"`
	Kind          text              `yaml:"kind"`
	InRecovery    topology.Tri      `yaml:"in_recovery"`
	ReadOnly      topology.Tri      `yaml:"read_only"`
	SystemID      uint64            `yaml:"system_id"`
	Timeline      timeline          `yaml:"timeline"`
	Write         position          `yaml:"write_lsn"`
	Receive       position          `yaml:"receive_lsn"`
	Replay        position          `yaml:"replay_lsn"`
	ReplayedAt    time.Time         `yaml:"replayed_at"`
	ReplayPaused  topology.Tri      `yaml:"replay_paused"`
	ApplyDelay    span              `yaml:"apply_delay"`
	Upstream      topology.Tri      `yaml:"upstream"`
	Receiver      receiverFile      `yaml:"receiver"`
	StartedAt     time.Time         `yaml:"started_at"`
	ServerVersion int64             `yaml:"server_version"`
	Standbys      []standbyFile     `yaml:"standbys"`
	SyncWaiters   int64             `yaml:"sync_waiters"`
}

type receiverFile struct {
	Running    topology.Tri `yaml:"running"`
	Streaming  topology.Tri `yaml:"streaming"`
	Timeline   timeline     `yaml:"timeline"`
	LatestEnd  position     `yaml:"latest_end"`
	SenderHost text         `yaml:"sender_host"`
	SenderPort uint16       `yaml:"sender_port"`
	MessageAge span         `yaml:"message_age"`
}

type standbyFile struct {
	Name      text     `yaml:"name"`
	State     text     `yaml:"state"`
	SyncState text     `yaml:"sync_state"`
	Replay    position `yaml:"replay_lsn"`
}

type nodesFile struct {
	ConfirmedEmpty bool       `yaml:"confirmed_empty"`
	List           []nodeFile `yaml:"list"`
}

type nodeFile struct {
	Name    text             `yaml:"name"`
	Address topology.Address `yaml:"address"`
	Tags    map[text]text    `yaml:"tags"`
}

type authorityFile struct {
	Leader         text         `yaml:"leader"`
	SessionAgrees  topology.Tri `yaml:"session_agrees"`
	Pause          topology.Tri `yaml:"pause"`
	Failsafe       topology.Tri `yaml:"failsafe"`
	StandbyCluster bool         `yaml:"standby_cluster"`
	TTL            span         `yaml:"ttl"`
	LoopWait       span         `yaml:"loop_wait"`
	RetryTimeout   span         `yaml:"retry_timeout"`
	SystemID       uint64       `yaml:"system_id"`
	Timeline       timeline     `yaml:"timeline"`
	Optime         position     `yaml:"optime"`
	OptimeIndex    uint64       `yaml:"optime_index"`
	SyncMode       text         `yaml:"sync_mode"`
	SyncStandbys   []text       `yaml:"sync_standbys"`
	Members        []memberFile `yaml:"members"`
	Monitor        *monitorFile `yaml:"monitor"`
}

type memberFile struct {
	Name     text             `yaml:"name"`
	Role     text             `yaml:"role"`
	State    text             `yaml:"state"`
	Timeline timeline         `yaml:"timeline"`
	LSN      position         `yaml:"lsn"`
	Address  topology.Address `yaml:"address"`
	APIURL   text             `yaml:"api_url"`
	Tags     map[text]text    `yaml:"tags"`

	Application text          `yaml:"application"`
	Assigned    *assignedFile `yaml:"assigned"`
}

type localFile struct {
	Isolated topology.Tri `yaml:"isolated"`
}

type portFile struct {
	Node    *text             `yaml:"node"`
	Address *topology.Address `yaml:"address"`
	Port    uint16            `yaml:"port"`
}
