package simulate

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func (e encoder) observation(o topology.Observation, at time.Duration) *yaml.Node {
	f := newFields()
	f.text("source", o.Source.String())
	if o.Cluster != e.cluster {
		f.put("cluster", scalar(o.Cluster))
	}
	f.number("seq", o.Seq)
	here := o.At.Mono.Sub(e.start.Mono)
	if here != at {
		f.put("at", scalar(here.String()))
	}
	asked := o.AskedAt.Mono.Sub(e.start.Mono)
	if asked != here {
		f.put("asked", scalar(asked.String()))
	}
	if wall := o.At.Wall; !wall.Equal(e.start.Wall.Add(here)) {
		f.put("wall", scalar(stamp(wall)))
	}
	if wall := o.AskedAt.Wall; !wall.Equal(e.start.Wall.Add(asked)) {
		f.put("asked_wall", scalar(stamp(wall)))
	}
	e.content(f, o)
	return f.n
}

func (e encoder) content(f fields, o topology.Observation) {
	if o.Failure != nil {
		f.flow("failure", encodeFailure(*o.Failure, o.Source))
	}
	if o.Probe != nil {
		f.flow("probe", encodeProbe(*o.Probe, o.Source))
	}
	if o.Port != nil {
		below := newFields()
		writeNode(below, o.Port.Node, o.Source)
		below.put("address", scalar(o.Port.Address.String()))
		below.number("port", uint64(o.Port.Port))
		f.flow("port", below)
	}
	if o.Authority != nil {
		f.put("authority", encodeAuthority(*o.Authority))
	}
	if o.Nodes != nil {
		below := newFields()
		below.raw("confirmed_empty", strconv.FormatBool(o.Nodes.ConfirmedEmpty))
		below.list("list", nodeNodes(o.Nodes.Nodes))
		f.put("nodes", below.n)
	}
	if o.Local != nil {
		below := newFields()
		below.put("isolated", scalar(o.Local.Isolated.String()))
		f.flow("local", below)
	}
}

// nodeNodes are nodes of a list, one a line.
func nodeNodes(all []topology.Node) []*yaml.Node {
	var out []*yaml.Node
	for _, n := range all {
		spec := newFields()
		spec.text("name", n.Name)
		spec.address("address", n.Address)
		spec.tags(n.Tags)
		spec.n.Style = yaml.FlowStyle
		out = append(out, spec.n)
	}
	return out
}

// writeNode writes the node's name where it is not the source's.
func writeNode(f fields, name string, src topology.SourceID) {
	if name != nodeOr(nil, src) {
		f.put("node", scalar(name))
	}
}

func encodeFailure(x topology.Failure, src topology.SourceID) fields {
	f := newFields()
	f.put("class", scalar(string(x.Class)))
	f.text("text", x.Text)
	writeNode(f, x.Node, src)
	if src.Kind == topology.SourcePostgres || !x.Address.IsZero() {
		f.put("address", scalar(x.Address.String()))
	}
	f.text("asked", string(x.Asked))
	f.number("port", uint64(x.Port))
	return f
}

func encodeProbe(p topology.Probe, src topology.SourceID) fields {
	f := newFields()
	writeNode(f, p.Node, src)
	f.put("address", scalar(p.Address.String()))
	f.text("kind", string(p.Kind))
	f.tri("in_recovery", p.InRecovery)
	f.tri("read_only", p.ReadOnly)
	f.number("system_id", p.SystemID)
	f.number("timeline", uint64(p.Timeline))
	f.lsn("write_lsn", p.WriteLSN)
	f.lsn("receive_lsn", p.ReceiveLSN)
	f.lsn("replay_lsn", p.ReplayLSN)
	f.time("replayed_at", p.ReplayedAt)
	f.tri("replay_paused", p.ReplayPaused)
	f.duration("apply_delay", p.ApplyDelay)
	f.tri("upstream", p.Upstream)
	r := newFields()
	r.tri("running", p.Receiver.Running)
	r.tri("streaming", p.Receiver.Streaming)
	r.number("timeline", uint64(p.Receiver.Timeline))
	r.lsn("latest_end", p.Receiver.LatestEnd)
	r.text("sender_host", p.Receiver.SenderHost)
	r.number("sender_port", uint64(p.Receiver.SenderPort))
	r.duration("message_age", p.Receiver.MessageAge)
	f.flow("receiver", r)
	f.time("started_at", p.StartedAt)
	f.raw("server_version", strconv.Itoa(p.ServerVersion))
	var rows []*yaml.Node
	for _, s := range p.Standbys {
		row := newFields()
		row.text("name", s.Name)
		row.text("state", s.State)
		row.text("sync_state", s.SyncState)
		row.lsn("replay_lsn", s.ReplayLSN)
		rows = append(rows, row.n)
	}
	f.list("standbys", rows)
	f.raw("sync_waiters", strconv.Itoa(p.SyncWaiters))
	return f
}

func encodeAuthority(a topology.Authority) *yaml.Node {
	f := newFields()
	f.text("leader", a.Leader)
	f.tri("session_agrees", a.SessionAgrees)
	f.tri("pause", a.Pause)
	f.tri("failsafe", a.Failsafe)
	f.raw("standby_cluster", strconv.FormatBool(a.StandbyCluster))
	f.duration("ttl", a.TTL)
	f.duration("loop_wait", a.LoopWait)
	f.duration("retry_timeout", a.RetryTimeout)
	f.number("system_id", a.SystemID)
	f.number("timeline", uint64(a.Timeline))
	f.lsn("optime", a.Optime)
	f.number("optime_index", a.OptimeIndex)
	f.text("sync_mode", a.SyncMode)
	var standbys, members []*yaml.Node
	for _, s := range a.SyncStandbys {
		standbys = append(standbys, scalar(s))
	}
	f.list("sync_standbys", standbys)
	for _, m := range a.Members {
		row := newFields()
		row.text("name", m.Name)
		row.text("role", m.Role)
		row.text("state", m.State)
		row.number("timeline", uint64(m.Timeline))
		row.lsn("lsn", m.LSN)
		row.address("address", m.Address)
		row.text("api_url", m.APIURL)
		row.tags(m.Tags)
		row.text("application", m.Application)
		row.assigned(m.Assigned)
		row.n.Style = yaml.FlowStyle
		members = append(members, row.n)
	}
	f.list("members", members)
	f.monitor(a.Monitor)
	return f.n
}
