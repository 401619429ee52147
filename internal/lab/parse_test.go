package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	for in, want := range map[string]procStat{
		"7 (a) b) S 3 7 7 0 -1 4194560":     {state: 'S', parent: 3},
		"8 (bash) T 1 8 8 34816 8 4194304 ": {state: 'T', parent: 1, terminal: true},
		"":                                  {},
	} {
		if diff := cmp.Diff(want, parseStat(in), cmp.AllowUnexported(procStat{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestParseProcs(t *testing.T) {
	const answer = `#<PID>          <type>          <reloads>       <uptime>        <version>
26428           master          2 [failed: 1]   0d00h00m02s     2.6.12
# workers
26431           worker          0               0d00h00m02s     2.6.12
# old workers
26400           worker          1               0d00h00m09s     2.6.12
26390           worker          2               0d00h00m10s     2.6.12
# programs
`
	got := parseProcs(answer)
	want := procs{failed: "failed: 1]   0d00h00m02s     2.6.12\n", workers: []int{26431}, old: []int{26400, 26390}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(procs{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := failures(got.failed); n != 1 {
		t.Errorf("%d failures, want 1", n)
	}
}

func TestWithDefaults(t *testing.T) {
	got := withDefaults([]string{"--concurrency", "2"}, "--concurrency", "1", "--drain-time-s", "0")
	if diff := cmp.Diff([]string{"--concurrency", "2", "--drain-time-s", "0"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
