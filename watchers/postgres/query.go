package postgres

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// rights is what the probe role may do. It is asked when a session opens, since
// PostgreSQL checks the right to call a function before it looks whether a CASE
// ever reaches the call.
type rights struct {
	Version    int  `json:"version"`
	Checkpoint bool `json:"checkpoint"` // pg_control_checkpoint
	System     bool `json:"system"`     // pg_control_system
	Settings   bool `json:"settings"`   // settings for superusers and pg_read_all_settings
	Stats      bool `json:"stats"`      // what other roles' sessions do
}

const rightsQuery = `SELECT json_build_object(
 'version', current_setting('server_version_num')::int,
 'checkpoint', has_function_privilege('pg_catalog.pg_control_checkpoint()', 'execute'),
 'system', has_function_privilege('pg_catalog.pg_control_system()', 'execute'),
 'settings', pg_has_role('pg_read_all_settings', 'usage'),
 'stats', pg_has_role('pg_read_all_stats', 'usage'))`

// probeQuery asks for everything in one row of one JSON value, where null is
// "not known". It must never raise an error, on a primary or a standby:
//
//   - whether the server is in recovery is asked once. It can only turn from yes
//     to no, so what needs a primary is safe; the pause state alone fails when a
//     promotion falls between the two calls (SQLSTATE 55000, a window of
//     microseconds), and is then asked again.
//   - pg_stat_wal_receiver without the right to read it is a row of nulls, and no
//     row without a receiver (field report P3), so the row itself is told too.
//   - sessions are counted only where a commit can wait for a standby at all: with
//     300 of them the count takes 0.2 ms, half as long as all the rest (measured
//     on 15).
//   - a receiver tells what it has written only once it has written; else, and
//     without the right to read it, what has ever been flushed is what was received.
//   - a primary's timeline is in the name of its current WAL file; its control
//     file keeps the old one for a while after a promotion.
const probeQuery = `SELECT json_build_object(
 'in_recovery', r.yes,
 'read_only', r.yes OR current_setting('default_transaction_read_only')::bool,
 'system_id', %[1]s,
 'wal_file', CASE WHEN NOT r.yes THEN pg_walfile_name(pg_current_wal_lsn()) END,
 'write_lsn', CASE WHEN NOT r.yes THEN pg_current_wal_lsn() END,
 'receive_lsn', CASE WHEN r.yes THEN coalesce(w.written_lsn, pg_last_wal_receive_lsn()) END,
 'replay_lsn', pg_last_wal_replay_lsn(),
 'replayed_us', (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::bigint,
 'pause_state', CASE WHEN r.yes THEN pg_get_wal_replay_pause_state() END,
 'apply_delay_ms', (extract(epoch FROM current_setting('recovery_min_apply_delay')::interval) * 1000)::bigint,
 'upstream', %[2]s,
 'checkpoint_timeline', CASE WHEN r.yes AND w.received_tli IS NULL THEN %[3]s END,
 'receiver_row', w.present IS NOT NULL,
 'receiver_status', w.status,
 'receiver_timeline', w.received_tli,
 'latest_end', w.latest_end_lsn,
 'sender_host', w.sender_host,
 'sender_port', w.sender_port,
 'message_age_us', (extract(epoch FROM clock_timestamp() - w.last_msg_receipt_time) * 1000000)::bigint,
 'sync_waiters', CASE WHEN r.yes OR current_setting('synchronous_standby_names') = '' THEN 0 ELSE %[4]s END,
 'started_us', (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
 'standbys', (SELECT json_agg(json_build_object('name', application_name, 'state', state,
   'sync_state', sync_state, 'replay_lsn', replay_lsn) ORDER BY application_name, pid)
   FROM pg_stat_replication WHERE state IS NOT NULL))
FROM (SELECT pg_is_in_recovery() AS yes OFFSET 0) r
LEFT JOIN (SELECT 1 AS present, * FROM pg_stat_wal_receiver) w ON true`

// statement returns the probe's query for a session with these rights.
func (r rights) statement() string {
	systemID, upstream, timeline, waiters := "NULL::bigint", "NULL::bool", "NULL::int", "NULL::bigint"
	if r.System {
		systemID = "(SELECT system_identifier FROM pg_control_system())"
	}
	if r.Settings {
		upstream = "current_setting('primary_conninfo', true) <> ''"
	}
	if r.Checkpoint {
		timeline = "(SELECT timeline_id FROM pg_control_checkpoint())"
	}
	if r.Stats {
		waiters = "(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')"
	}
	return fmt.Sprintf(probeQuery, systemID, upstream, timeline, waiters)
}

// answer is the row of probeQuery. A nil field is one the server did not tell.
type answer struct {
	InRecovery         *bool     `json:"in_recovery"`
	ReadOnly           *bool     `json:"read_only"`
	SystemID           *int64    `json:"system_id"`
	WALFile            string    `json:"wal_file"`
	WriteLSN           lsn       `json:"write_lsn"`
	ReceiveLSN         lsn       `json:"receive_lsn"`
	ReplayLSN          lsn       `json:"replay_lsn"`
	ReplayedUS         *int64    `json:"replayed_us"`
	PauseState         string    `json:"pause_state"`
	ApplyDelayMS       int64     `json:"apply_delay_ms"`
	Upstream           *bool     `json:"upstream"`
	CheckpointTimeline uint32    `json:"checkpoint_timeline"`
	ReceiverRow        bool      `json:"receiver_row"`
	ReceiverStatus     *string   `json:"receiver_status"`
	ReceiverTimeline   uint32    `json:"receiver_timeline"`
	LatestEnd          lsn       `json:"latest_end"`
	SenderHost         string    `json:"sender_host"`
	SenderPort         int32     `json:"sender_port"`
	MessageAgeUS       *int64    `json:"message_age_us"`
	SyncWaiters        *int      `json:"sync_waiters"`
	StartedUS          *int64    `json:"started_us"`
	Standbys           []standby `json:"standbys"`
}

type standby struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	SyncState string `json:"sync_state"`
	ReplayLSN lsn    `json:"replay_lsn"`
}

// lsn reads a position; null stays unknown.
type lsn topology.LSN

// UnmarshalJSON reads PostgreSQL's text form.
func (l *lsn) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	if s == "null" || s == "" {
		return nil
	}
	v, err := topology.ParseLSN(s)
	*l = lsn(v)
	return err
}

// parseAnswer reads the row into a probe that lacks only who was asked.
func parseAnswer(row []byte) (topology.Probe, error) {
	var a answer
	if err := json.Unmarshal(row, &a); err != nil {
		return topology.Probe{}, fmt.Errorf("the probe's answer cannot be read: %w", err)
	}
	timeline, err := a.timeline()
	if err != nil {
		return topology.Probe{}, err
	}
	p := topology.Probe{
		Kind:         topology.ProbeFull,
		InRecovery:   tri(a.InRecovery),
		ReadOnly:     tri(a.ReadOnly),
		Timeline:     timeline,
		WriteLSN:     topology.LSN(a.WriteLSN),
		ReceiveLSN:   topology.LSN(a.ReceiveLSN),
		ReplayLSN:    topology.LSN(a.ReplayLSN),
		ReplayedAt:   wall(a.ReplayedUS),
		ReplayPaused: a.paused(),
		ApplyDelay:   time.Duration(a.ApplyDelayMS) * time.Millisecond,
		Upstream:     tri(a.Upstream),
		Receiver:     a.receiver(),
		StartedAt:    wall(a.StartedUS),
		SyncWaiters:  -1,
	}
	if a.SyncWaiters != nil {
		p.SyncWaiters = *a.SyncWaiters
	}
	if a.SystemID != nil {
		p.SystemID = uint64(*a.SystemID) // PostgreSQL shows the unsigned number as bigint
	}
	for _, s := range a.Standbys {
		p.Standbys = append(p.Standbys, topology.Standby{
			Name: s.Name, State: s.State, SyncState: s.SyncState, ReplayLSN: topology.LSN(s.ReplayLSN),
		})
	}
	return p, nil
}

// timeline of a primary is the first eight digits of its WAL file's name.
func (a answer) timeline() (topology.Timeline, error) {
	switch {
	case a.WALFile == "" && a.ReceiverTimeline != 0:
		return topology.Timeline(a.ReceiverTimeline), nil
	case a.WALFile == "":
		return topology.Timeline(a.CheckpointTimeline), nil
	case len(a.WALFile) != 24:
		return 0, fmt.Errorf("%.40q is not the name of a WAL file", a.WALFile)
	}
	n, err := strconv.ParseUint(a.WALFile[:8], 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not the name of a WAL file", a.WALFile)
	}
	return topology.Timeline(n), nil
}

func (a answer) paused() topology.Tri {
	if a.PauseState == "" {
		return topology.Unknown
	}
	return topology.Bool(a.PauseState != "not paused")
}

// receiver tells "no receiver" (no row) from "no right to see it" (a row of
// nulls).
func (a answer) receiver() topology.Receiver {
	r := topology.Receiver{
		Timeline: topology.Timeline(a.ReceiverTimeline), LatestEnd: topology.LSN(a.LatestEnd),
		SenderHost: a.SenderHost, MessageAge: -1,
	}
	if a.SenderPort > 0 && a.SenderPort <= math.MaxUint16 {
		r.SenderPort = uint16(a.SenderPort)
	}
	switch {
	case !a.ReceiverRow:
		r.Running, r.Streaming = topology.No, topology.No
	case a.ReceiverStatus != nil:
		r.Running, r.Streaming = topology.Yes, topology.Bool(*a.ReceiverStatus == "streaming")
	}
	if a.MessageAgeUS != nil {
		r.MessageAge = max(0, time.Duration(*a.MessageAgeUS)*time.Microsecond)
	}
	return r
}

func tri(b *bool) topology.Tri {
	if b == nil {
		return topology.Unknown
	}
	return topology.Bool(*b)
}

func wall(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(*us).UTC()
}
