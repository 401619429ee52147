package postgres

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

// The scripted server and the prober must mean the same by every key.
func TestRowsOfTheScriptedServerAreRead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, want := range []topology.Probe{
		{
			InRecovery: topology.No, ReadOnly: topology.No, SystemID: 1<<63 + 5, Timeline: 0x1F, WriteLSN: 0x2_0000_0060,
			Upstream: topology.No, StartedAt: at, Receiver: topology.Receiver{Running: topology.No, Streaming: topology.No, MessageAge: -1},
			Standbys:    []topology.Standby{{Name: "n2", State: "streaming", SyncState: "async", ReplayLSN: 7}},
			SyncWaiters: 3,
		},
		{
			InRecovery: topology.Yes, ReadOnly: topology.Yes, SystemID: 5, Timeline: 3, ReceiveLSN: 9, ReplayLSN: 8,
			ReplayedAt: at, ReplayPaused: topology.Yes, ApplyDelay: 5 * time.Minute, Upstream: topology.Yes,
			Receiver: topology.Receiver{
				Running: topology.Yes, Streaming: topology.Yes, Timeline: 3, LatestEnd: 10,
				SenderHost: "10.0.0.1", SenderPort: 5432, MessageAge: 30 * time.Second,
			},
		},
		{InRecovery: topology.Yes, ReadOnly: topology.Yes, Timeline: 2, SyncWaiters: -1, Receiver: topology.Receiver{MessageAge: -1}}, // no rights
	} {
		want.Kind = topology.ProbeFull
		got, err := parseAnswer(pgtest.Row(want))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
}

func TestAnswersThatCannotBeRead(t *testing.T) {
	for _, row := range []string{"", "[]", `{"wal_file":"short"}`, `{"wal_file":"0000000X0000000000000001"}`, `{"write_lsn":"1"}`} {
		if p, err := parseAnswer([]byte(row)); err == nil {
			t.Errorf("%q was read as %+v", row, p)
		}
	}
}

func TestAnEmptyAnswerIsUnknown(t *testing.T) {
	p, err := parseAnswer([]byte(`{"in_recovery":null,"receiver_row":true,"receiver_status":null}`))
	if err != nil {
		t.Fatal(err)
	}
	want := topology.Probe{Kind: topology.ProbeFull, SyncWaiters: -1, Receiver: topology.Receiver{MessageAge: -1}}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
