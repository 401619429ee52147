package config

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func selector(t *testing.T, text string) topology.Selector {
	t.Helper()
	s, err := topology.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPolicyOfFull: what the file says reaches the engine.
func TestPolicyOfFull(t *testing.T) {
	want := topology.DefaultPolicy()
	want.Authority, want.AuthorityLost = topology.AuthorityPatroni, topology.LostSQLOnly
	want.SilentAfter, want.LeaderGap = 3*time.Second, 15*time.Second
	want.LagGrace, want.LagReturnAfter, want.MinDwell = time.Second, 4*time.Second, 5*time.Second
	want.Flap = topology.Flap{Count: 2, Within: 30 * time.Second, HoldDown: 10 * time.Second, HoldDownMax: time.Minute, Calm: 2 * time.Minute}
	want.SlowStart, want.WritesBlockedAfter = 0, 20*time.Second
	want.WritesStalledAfter, want.WriteStall = 3*time.Second, topology.StallDrain
	got := parseFull(t).Policy("main")
	pools := got.Pools
	got.Pools = want.Pools
	compare(t, want, got)

	near := topology.DefaultPool("near", topology.ModeRead)
	near.Select, near.Role, near.Zone = selector(t, "zone in (a, b), !archive"), topology.RoleSync, "a"
	near.MaxLagTime, near.Fallback = 5*time.Second, topology.FallbackStale
	near.RequireStreaming, near.WeightByLag = false, false
	near.Weights = map[string]int{"n1": 100, "n2": 1}
	near.Sessions = map[topology.Code]topology.Verdict{topology.CodeLag: topology.Down, topology.CodeTimeline: topology.Drain}
	compare(t, near, pools[3])

	rw := topology.DefaultPool("rw", topology.ModeWrite)
	rw.Port, rw.PortCheck = 6432, topology.PortCheckPgBouncer
	rw.Sessions = map[topology.Code]topology.Verdict{topology.CodePort: topology.Drain}
	compare(t, rw, pools[0])
	compare(t, []string{"", "a", "a", "a", ""}, []string{pools[0].Zone, pools[1].Zone, pools[2].Zone, pools[3].Zone, pools[4].Zone})
}

// TestPolicyIsWhole: every field of topology's policy and pools can be said.
func TestPolicyIsWhole(t *testing.T) {
	for _, tt := range []struct {
		of, by    reflect.Type
		elsewhere []string // what stands elsewhere
	}{
		{reflect.TypeFor[topology.Policy](), reflect.TypeFor[Policy](), []string{"Authority", "Pools"}},
		{reflect.TypeFor[topology.Pool](), reflect.TypeFor[Pool](), []string{"Zone"}},
		{reflect.TypeFor[topology.Flap](), reflect.TypeFor[Flap](), nil},
	} {
		for f := range tt.of.Fields() {
			ours, ok := tt.by.FieldByName(f.Name)
			if !slices.Contains(tt.elsewhere, f.Name) && (!ok || !f.Type.ConvertibleTo(ours.Type)) {
				t.Errorf("%s of %s is not in %s, or is another type there", f.Name, tt.of, tt.by)
			}
		}
	}
}

// TestPoolModeSetsDefaults: a pool begins as topology's pool of its mode.
func TestPoolModeSetsDefaults(t *testing.T) {
	for _, tt := range []struct {
		text string
		want topology.Pool
	}{
		{"w: {mode: write}", topology.DefaultPool("w", topology.ModeWrite)},
		{"r: {mode: read}", topology.DefaultPool("r", topology.ModeRead)},
		{"primary:", topology.DefaultPool("primary", topology.ModeWrite)},
		{"replica: {}", topology.DefaultPool("replica", topology.ModeRead)},
		{"primary: {mode: read}", topology.DefaultPool("primary", topology.ModeRead)},
	} {
		c, err := Parse("x", []byte("clusters: {main: {nodes: {a: 10.0.0.1:5432}, pools: {"+tt.text+"}}}"))
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		compare(t, []topology.Pool{tt.want}, c.Policy("main").Pools)
	}
}
