package postgres

import (
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

// BenchmarkParse is the part of a full probe's cost that is ours: design.md
// section 9 wants 3,000 of them a second in half a core, with all the rest.
func BenchmarkParse(b *testing.B) {
	row := pgtest.Row(topology.Probe{
		InRecovery: topology.Yes, ReadOnly: topology.Yes, SystemID: 5, Timeline: 3, ReceiveLSN: 9, ReplayLSN: 8,
		Upstream: topology.Yes, Receiver: topology.Receiver{Running: topology.Yes, Streaming: topology.Yes, Timeline: 3},
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseAnswer(row); err != nil {
			b.Fatal(err)
		}
	}
}
