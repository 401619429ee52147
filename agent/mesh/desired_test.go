package mesh

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

var update = flag.Bool("update", false, "write the golden file anew")

// settings of most tests.
var settings = Settings{Service: "main"}

// shown writes a registration on one line.
func shown(r Registration) string {
	var meta []string
	for _, k := range slices.Sorted(maps.Keys(r.Meta)) {
		meta = append(meta, k+"="+r.Meta[k])
	}
	text := fmt.Sprintf("%s of %s at %s:%d %s weights %d/%d tags %v meta %v output %q notes %q", r.ID, r.Service, r.Address, r.Port, r.Check.Status, r.Passing, r.Warning, r.Tags, meta, r.Check.Output, r.Check.Notes)
	if r.Sidecar {
		text += " sidecar"
	}
	return text
}

// What is published of each case, as a page that people can read.
func TestDesired(t *testing.T) {
	patroni := func(a topology.Authority) func(*topology.View) {
		return func(v *topology.View) { v.Facts.Authority = &a }
	}
	standbys := func(states ...string) func(*topology.View) {
		return func(v *topology.View) {
			for _, s := range states {
				name, state, _ := strings.Cut(s, "=")
				v.Facts.Nodes["n1"].Probe.Standbys = append(v.Facts.Nodes["n1"].Probe.Standbys, topology.Standby{Name: name, State: "streaming", SyncState: state})
			}
		}
	}
	fallsBack := func(v *topology.View) { v.Snapshot.Pools[1].Fallback = true }
	three := n1Leads + "\nn3 down/wrong_role up/replica yes"
	cases := []struct {
		name  string
		scene string
		s     Settings
		with  []func(*topology.View)
	}{
		{"a primary and a replica", n1Leads, settings, nil},
		{"after the switchover", n2Leads, settings, nil},
		{"the key names a sync standby that is still catching up (FR-09)", three, settings, []func(*topology.View){
			patroni(topology.Authority{Leader: "n1", SyncMode: "sync", SyncStandbys: []string{"n2", "n3"}}), standbys("n2=async", "n3=sync"),
		}},
		{"quorum", three, settings, []func(*topology.View){
			patroni(topology.Authority{Leader: "n1", SyncMode: "quorum", SyncStandbys: []string{"n2", "n3"}}), standbys("n2=quorum", "n3=quorum"),
		}},
		{"maintenance of the primary: it keeps its tag and is critical", "n1 drain/maintenance drain/maintenance no\nn2 down/wrong_role up/replica yes", settings, nil},
		{"the primary is silent", "n1 drain/silent drain/silent no\nn2 down/wrong_role up/replica yes", settings, nil},
		{"two that were writable: nobody is primary", "n1 drain/no_leader drain/no_leader no\nn2 drain/no_leader drain/no_leader no", settings, nil},
		{"fenced", "n1 down/fenced down/fenced no\nn2 up/writer down/wrong_role no", settings, nil},
		{"behind but needed, behind and out, of low weight, of unknown lag", "n1 up/writer down/wrong_role no\nn2 down/wrong_role up/lag_override yes\nn3 down/wrong_role drain/lag yes\nn4 down/wrong_role up/ramping:25 yes\nn5 down/wrong_role drain/lag_unknown yes", settings, nil},
		{"nothing is known", nobody, settings, nil},
		{"the write pool is decided, one node is not", "n1 down/silent undecided/no_evidence unknown\nn2 up/writer down/wrong_role no", settings, nil},
		{"the read pool is decided, the writer is not", "n1 undecided/authority_unknown down/wrong_role no\nn2 undecided/authority_unknown up/replica yes", settings, nil},
		{"a standby cluster", "n1 down/standby_cluster up/replica yes\nn2 down/standby_cluster up/replica yes", settings, []func(*topology.View){
			patroni(topology.Authority{Leader: "n1", StandbyCluster: true}),
		}},
		{"zones, of which one is no label, and everything that can be set", n1Leads, Settings{
			Service: "pg-main", Tags: []string{"blue"}, Master: true, Sidecar: true, TTL: 3 * time.Minute, PrimaryTTL: 30 * time.Second,
		}, []func(*topology.View){func(v *topology.View) {
			v.Snapshot.Nodes[0].Tags = map[string]string{topology.TagZone: "EU-west-1a"}
			v.Snapshot.Nodes[1].Tags = map[string]string{topology.TagZone: "rack 7"}
			v.Snapshot.Pools[1].Nodes[1].Address = topology.Address{Host: "fd00::2", Port: 6432}
		}}},
		{"checks that stay", n1Leads, Settings{Service: "main", TTL: Never, PrimaryTTL: Never}, nil},
		{"the primary serves reads too, for want of replicas (FR-13)", "n1 up/writer up/fallback no\nn2 down/wrong_role down/silent yes", settings, []func(*topology.View){fallsBack}},
		{"a stale replica serves reads, for want of others", "n1 up/writer down/wrong_role no\nn2 down/wrong_role up/fallback_stale yes", settings, []func(*topology.View){fallsBack}},
		{"no pool for reads", n1Leads, settings, []func(*topology.View){func(v *topology.View) { v.Snapshot.Pools = v.Snapshot.Pools[:1] }}},
		{"a second read pool counts when it is named", n1Leads, Settings{Service: "main", ReadPool: "reports"}, []func(*topology.View){func(v *topology.View) {
			p := topology.PoolVerdicts{Pool: "reports", Mode: topology.ModeRead, Nodes: slices.Clone(v.Snapshot.Pools[1].Nodes)}
			p.Nodes[1].Verdict = topology.Drain
			v.Snapshot.Pools = append(v.Snapshot.Pools, p)
		}}},
	}
	var b strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&b, "# %s\n", c.name)
		v := scene(t, 0, c.scene)
		for _, f := range c.with {
			f(v)
		}
		for _, in := range Desired(v, c.s) {
			held := ""
			if in.KeepPrimary || in.KeepOther {
				held = fmt.Sprintf(" (held where it stands: as primary %t, else %t)", in.KeepPrimary, in.KeepOther)
			}
			b.WriteString(shown(in.registration(c.s)) + held + "\n")
		}
		b.WriteString("\n")
	}
	const golden = "testdata/desired.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What stands and what is wanted give what is written, the primary last.
func TestPlan(t *testing.T) {
	of := func(text string) map[string]Registration {
		out := map[string]Registration{}
		for _, in := range Desired(scene(t, 0, text), settings) {
			r := in.registration(settings)
			out[r.ID] = r
		}
		return out
	}
	change := func(id string, f func(*Registration)) map[string]Registration {
		out := of(n1Leads)
		r := out[id]
		r.Meta = maps.Clone(r.Meta)
		f(&r)
		out[id] = r
		return out
	}
	const one, two = "pgsteer:main:n1", "pgsteer:main:n2"
	for _, c := range []struct {
		name      string
		want      string
		standing  map[string]Registration
		confirmed bool
		set, drop string
	}{
		{"nothing stands", n1Leads, nil, false, two + " " + one, ""},
		{"all stands", n1Leads, of(n1Leads), false, "", ""},
		{"a switchover", n2Leads, of(n1Leads), false, one + " " + two, ""},
		{"nothing is known", nobody, of(n1Leads), false, "", ""},
		{"nothing is known and nothing stands", nobody, nil, false, "", ""},
		{"the primary of before is not known, another one is", "n1 down/silent undecided/no_evidence unknown\nn2 up/writer down/wrong_role no", of(n1Leads), false, one + " " + two, ""},
		{"the primary of before is not known, another one that takes no sessions waits", "n1 undecided/no_evidence undecided/no_evidence unknown\nn2 drain/maintenance drain/maintenance no", of(n1Leads), false, two, ""},
		{"the replica of before is not known", "n1 up/writer down/wrong_role no\nn2 down/silent undecided/no_evidence unknown", of(n1Leads), false, "", ""},
		{"the writer is not known, the replica is out", "n1 undecided/authority_unknown undecided/no_evidence unknown\nn2 undecided/authority_unknown drain/silent yes", of(n1Leads), false, two, ""},
		{"whoever stands as primary is held while the writer is not known", "n1 undecided/authority_unknown drain/silent no\nn2 undecided/authority_unknown up/replica yes", of(n1Leads), false, "", ""},
		{"other words of a check that passes", n1Leads, change(two, func(r *Registration) { r.Check.Output = "x" }), false, "", ""},
		{"somebody has changed the tags", n1Leads, change(two, func(r *Registration) { r.Tags = []string{"primary", "replica"} }), false, two, ""},
		{"somebody has allowed to change the tags", n1Leads, change(two, func(r *Registration) { r.EnableTagOverride = true }), false, two, ""},
		{"the check is gone", n1Leads, change(two, func(r *Registration) { r.Check = Check{} }), false, two, ""},
		{"another address", n1Leads, change(two, func(r *Registration) { r.Port++ }), false, two, ""},
		{"what is not known yet is taken over", "n1 up/writer down/wrong_role no\nn2 down/wrong_role drain/silent yes", of("n1 up/writer down/wrong_role no\nn2 down/wrong_role drain/silent yes"), false, "", ""},
		{"a node has left", "n1 up/writer down/wrong_role no", of(n1Leads), false, two, ""},
		{"it has been told already", "n1 up/writer down/wrong_role no", func() map[string]Registration { m := of(n1Leads); m[two] = departed(m[two], settings); return m }(), false, "", ""},
		{"a node has left for good", "n1 up/writer down/wrong_role no", of(n1Leads), true, "", two},
	} {
		p := plan(Desired(scene(t, 0, c.want), settings), c.standing, settings, func(string) bool { return c.confirmed })
		var set []string
		for _, r := range p.set {
			set = append(set, r.ID)
		}
		for _, r := range p.set {
			if r.Address == "" {
				t.Errorf("%s: %s is written without an address", c.name, r.ID)
			}
		}
		if got, drop := strings.Join(set, " "), strings.Join(p.drop, " "); got != c.set || drop != c.drop {
			t.Errorf("%s: written %q, deregistered %q, want %q and %q", c.name, got, drop, c.set, c.drop)
		}
		primaries := 0
		for _, r := range p.whole {
			if isPrimary(r) {
				primaries++
			}
		}
		if primaries > 1 {
			t.Errorf("%s: %d instances are primary", c.name, primaries)
		}
	}
}

// A pgsteer that was just started knows less than what stands.
func TestCarry(t *testing.T) {
	v := scene(t, 0, n1Leads)
	v.Facts.Authority = &topology.Authority{Leader: "n1", SyncMode: "sync", SyncStandbys: []string{"n2"}}
	v.Facts.Nodes["n1"].Probe.Standbys = []topology.Standby{{Name: "n2", State: "streaming", SyncState: "sync"}}
	before := Desired(v, settings)[1].registration(settings)
	v = scene(t, 0, "n1 undecided/no_evidence undecided/no_evidence unknown\nn2 down/wrong_role up/replica unknown")
	after := Desired(v, settings)[1].carry(before).registration(settings)
	if diff := cmp.Diff(shown(before), shown(after)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// Tags come from outside, and a long one must not cost the whole instance.
func TestLongZone(t *testing.T) {
	v := scene(t, 0, n1Leads)
	v.Snapshot.Nodes[0].Tags = map[string]string{topology.TagZone: strings.Repeat("ä", 400)}
	if zone := Desired(v, settings)[0].registration(settings).Meta["zone"]; zone != strings.Repeat("ä", 64) {
		t.Errorf("the zone has %d bytes: %s", len(zone), zone)
	}
}

// A node whose address is not known, and which cannot be written, loses the tag primary to
// another one all the same.
func TestPrimaryWithoutAddress(t *testing.T) {
	standing := make(map[string]Registration)
	for _, in := range Desired(scene(t, 0, n1Leads), settings) {
		standing[ID(in.Cluster, in.Node)] = in.registration(settings)
	}
	v := scene(t, 0, n2Leads)
	v.Snapshot.Nodes[0].Address = topology.Address{}
	for i := range v.Snapshot.Pools {
		v.Snapshot.Pools[i].Nodes[0].Address = topology.Address{}
	}
	p := plan(Desired(v, settings), standing, settings, func(string) bool { return false })
	if r := p.whole["pgsteer:main:n1"]; isPrimary(r) || r.Address != "10.0.0.1" || r.Port != 5432 {
		t.Errorf("%s", shown(r))
	}
	if r := p.whole["pgsteer:main:n2"]; !isPrimary(r) {
		t.Errorf("%s", shown(r))
	}
}
