package pgtest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// rightsRow is the answer to the prober's question for its rights: all of them.
var rightsRow = []byte(`{"version":150018,"checkpoint":true,"system":true,"settings":true,"stats":true}`)

// Row returns the row with which a server says what p holds. Its keys are those
// of the prober's query; a test over there holds both together.
func Row(p topology.Probe) []byte {
	row := map[string]any{
		"in_recovery":    tri(p.InRecovery),
		"read_only":      tri(p.ReadOnly),
		"write_lsn":      lsn(p.WriteLSN),
		"receive_lsn":    lsn(p.ReceiveLSN),
		"replay_lsn":     lsn(p.ReplayLSN),
		"replayed_us":    micros(p.ReplayedAt),
		"started_us":     micros(p.StartedAt),
		"apply_delay_ms": p.ApplyDelay.Milliseconds(),
		"upstream":       tri(p.Upstream),
		"receiver_row":   p.Receiver.Running != topology.No,
		"latest_end":     lsn(p.Receiver.LatestEnd),
	}
	if p.SyncWaiters >= 0 {
		row["sync_waiters"] = p.SyncWaiters
	}
	if p.SystemID != 0 {
		row["system_id"] = int64(p.SystemID) // as PostgreSQL shows it
	}
	if p.InRecovery == topology.No && p.Timeline != 0 {
		row["wal_file"] = fmt.Sprintf("%08X%016X", uint32(p.Timeline), 1)
	} else {
		row["checkpoint_timeline"] = p.Timeline
	}
	switch p.ReplayPaused {
	case topology.Yes:
		row["pause_state"] = "paused"
	case topology.No:
		row["pause_state"] = "not paused"
	case topology.Unknown:
	}
	receiver(row, p.Receiver)
	row["standbys"] = standbys(p.Standbys)
	b, err := json.Marshal(row)
	if err != nil {
		panic(err) // a map of plain values always has a JSON form
	}
	return b
}

func receiver(row map[string]any, r topology.Receiver) {
	if r.Running != topology.Yes {
		return
	}
	row["receiver_status"] = "waiting"
	if r.Streaming == topology.Yes {
		row["receiver_status"] = "streaming"
	}
	row["receiver_timeline"] = r.Timeline
	row["sender_host"], row["sender_port"] = r.SenderHost, r.SenderPort
	if r.MessageAge >= 0 {
		row["message_age_us"] = r.MessageAge.Microseconds()
	}
}

func standbys(list []topology.Standby) []map[string]any {
	var rows []map[string]any
	for _, s := range list {
		rows = append(rows, map[string]any{
			"name": s.Name, "state": s.State, "sync_state": s.SyncState, "replay_lsn": lsn(s.ReplayLSN),
		})
	}
	return rows
}

func isYes(t topology.Tri) bool { return t == topology.Yes }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func tri(t topology.Tri) any {
	if t == topology.Unknown {
		return nil
	}
	return t == topology.Yes
}

func lsn(l topology.LSN) any {
	if l == 0 {
		return nil
	}
	return l.String()
}

func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}
