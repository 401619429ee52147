package healthapi

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// metrics has those of Patroni's metrics that can be told from outside, by the
// same names. pgsteer's own are at the status listener.
func (s *Server) metrics(sub *subject) *reply {
	if a, absent := sub.absent(); absent {
		return newReply(http.StatusServiceUnavailable, a.reason, errorBody{Error: a.reason.Text})
	}
	b := s.nodeBody(sub, answer{})
	p := &topology.Probe{}
	if b.State == running && sub.facts.Probe != nil {
		p = sub.facts.Probe
	}
	m := metricText{labels: fmt.Sprintf("{scope=%q,name=%q}", sub.ref.Cluster, sub.ref.Node)}
	m.flag("postgres_running", "1 if PostgreSQL answers over SQL.", b.State == running)
	m.gauge("postmaster_start_time", "Epoch seconds since PostgreSQL started.", epochSeconds(p.StartedAt))
	m.flag("primary", "1 if the node is not in recovery.", b.Role == "primary" || b.Role == "master")
	if sub.old() {
		m.flag("master", "1 if the node is not in recovery.", b.Role == "master")
	}
	m.counter("xlog_location", "Position of the write-ahead log, 0 on a standby.", uint64(p.WriteLSN))
	m.flag("standby_leader", "1 if the node leads a standby cluster.", b.Role == "standby_leader")
	m.flag("replica", "1 if the node is a replica.", b.Role == "replica")
	m.flag("sync_standby", "1 if the node is a synchronous standby.", b.SyncStandby)
	m.flag("quorum_standby", "1 if the node is in the quorum.", b.QuorumStandby)
	standby := *p
	if p.InRecovery != topology.Yes {
		standby = topology.Probe{}
	}
	m.counter("xlog_received_location", "Position received, 0 on a primary.", uint64(cmp.Or(standby.ReceiveLSN, standby.ReplayLSN)))
	m.counter("xlog_replayed_location", "Position replayed, 0 on a primary.", uint64(standby.ReplayLSN))
	m.gauge("xlog_replayed_timestamp", "Epoch seconds of the last transaction replayed, 0 if none.", epochSeconds(standby.ReplayedAt))
	m.flag("xlog_paused", "1 if replay is paused.", standby.ReplayPaused == topology.Yes)
	m.flag("postgres_streaming", "1 if the node streams.", b.ReplicationState == "streaming")
	m.flag("postgres_in_archive_recovery", "1 if the node restores from an archive.", b.ReplicationState != "" && b.ReplicationState != "streaming")
	m.gauge("postgres_server_version", "Version of PostgreSQL, 0 if it does not answer.", strconv.Itoa(b.ServerVersion))
	m.flag("cluster_unlocked", "1 if no node holds the leader key.", b.Unlocked)
	m.gauge("postgres_timeline", "Timeline of the node, 0 if it does not answer.", strconv.FormatUint(uint64(b.Timeline), 10))
	m.gauge("dcs_last_seen", "Epoch seconds of the authority's last answer.", strconv.FormatInt(b.DCSLastSeen, 10))
	m.flag("pending_restart", "1 if the node waits for a restart.", b.Pending)
	m.flag("is_paused", "1 if Patroni is paused.", b.Pause)
	text := []byte(m.text.String())
	return &reply{
		status: http.StatusOK, body: text, kind: kindText, length: []string{strconv.Itoa(len(text))}, reason: []string{"metrics in Patroni's names"},
	}
}

// metricText collects Prometheus' text.
type metricText struct {
	labels string
	text   strings.Builder
}

func (m *metricText) add(kind, name, help, value string) {
	fmt.Fprintf(&m.text, "# HELP patroni_%s %s\n# TYPE patroni_%s %s\npatroni_%s%s %s\n", name, help, name, kind, name, m.labels, value)
}

func (m *metricText) gauge(name, help, value string) { m.add("gauge", name, help, value) }

func (m *metricText) counter(name, help string, value uint64) {
	m.add("counter", name, help, strconv.FormatUint(value, 10))
}

func (m *metricText) flag(name, help string, set bool) {
	value := "0"
	if set {
		value = "1"
	}
	m.gauge(name, help, value)
}

func epochSeconds(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', -1, 64)
}
