package simulate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// FuzzEncodeScenario: whatever an agent sees, its record is loaded as the same
// observations, of the same cluster.
func FuzzEncodeScenario(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := &dice{rand.New(rand.NewPCG(seed, 1))}
		r := d.recording()
		var b bytes.Buffer
		if err := EncodeScenario(&b, r); err != nil {
			t.Fatal(err)
		}
		s, err := Parse("record.yaml", b.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, &b)
		}
		var got []topology.Observation
		for _, st := range s.steps {
			for _, o := range st.observe {
				if o.here {
					t.Errorf("an address is left open")
				}
				got = append(got, o.Observation)
			}
		}
		var want []topology.Observation
		for _, round := range r.Rounds {
			want = append(want, round.Observations...)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("observations (-recorded +loaded):\n%s\n%s", d, &b)
		}
		if d := cmp.Diff(r.Saved, s.saved, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("saved (-recorded +loaded):\n%s\n%s", d, &b)
		}
		if d := cmp.Diff(r.Cluster, s.cluster, cmpopts.EquateEmpty(), cmp.Comparer(sameSelector)); d != "" {
			t.Errorf("cluster (-recorded +loaded):\n%s\n%s", d, &b)
		}
		if !s.probing.Off || s.start != r.Start || s.zone != r.Zone {
			t.Errorf("loaded as %+v from %v in zone %q", s.probing, s.start, s.zone)
		}
	})
}

func sameSelector(a, b topology.Selector) bool { return a.String() == b.String() }

// dice draws values, many of them odd.
type dice struct{ *rand.Rand }

func pick[T any](d *dice, all ...T) T { return all[d.IntN(len(all))] }

func (d *dice) yes() bool { return d.IntN(2) == 0 }

func (d *dice) recording() Recording {
	start := topology.Clock{
		Mono: topology.Mono(1 + d.Int64N(int64(time.Hour))),
		Wall: time.Date(2026, 1, 1, 0, 0, 0, d.IntN(1e9), time.UTC).Add(time.Duration(d.Int64N(int64(9000 * time.Hour)))),
	}
	r := Recording{About: d.text(), Cluster: d.cluster(), Zone: pick(d, "", "az-1"), Start: start}
	if d.yes() {
		r.Saved = d.saved(r.Cluster.Name, start.Wall)
	}
	at := time.Duration(0)
	for range 1 + d.IntN(20) {
		at += time.Duration(d.Int64N(int64(pick(d, 1, time.Millisecond, time.Second))))
		round := Round{At: topology.Clock{Mono: start.Mono.Add(at), Wall: start.Wall.Add(at)}, Still: d.IntN(9) == 0}
		for range d.IntN(3) {
			round.Observations = append(round.Observations, d.observation(r.Cluster.Name, start, at))
		}
		if d.IntN(3) == 0 {
			round.Decision = d.decision(r.Cluster.Pools)
		}
		r.Rounds = append(r.Rounds, round)
	}
	return r
}

func (d *dice) saved(cluster string, start time.Time) *topology.Saved {
	s := &topology.Saved{
		Version: 1, Cluster: cluster, Writer: pick(d, "", "n1", "012"), SystemID: d.Uint64(), Timeline: d.timeline(), SavedAt: start,
		Nodes: []topology.Node{{Name: "n1", Address: d.address(), Tags: d.tags()}},
	}
	if d.yes() {
		s.Lost = map[string]time.Time{"no": start.Add(-time.Duration(d.Int64N(1e12)))}
		s.Verdicts = map[string]map[string]topology.Verdict{"primary": {"012": d.verdict(), "n1": d.verdict()}}
	}
	return s
}

func (d *dice) verdict() topology.Verdict {
	return pick(d, topology.Undecided, topology.Up, topology.Drain, topology.Down)
}

func (d *dice) decision(pools config.Pools) *topology.Snapshot {
	s := &topology.Snapshot{Writer: pick(d, "", "n1", "no")}
	for _, p := range pools {
		v := topology.PoolVerdicts{Pool: p.Name}
		for _, name := range []string{"012", "n1", "no"}[:d.IntN(4)] {
			v.Nodes = append(v.Nodes, topology.NodeVerdict{Node: name, Verdict: d.verdict()})
		}
		s.Pools = append(s.Pools, v)
	}
	return s
}

func (d *dice) cluster() config.Cluster {
	c := config.DefaultCluster(pick(d, "main", "alpha-2", "1e3"))
	c.Authority = pick(d, topology.AuthorityPatroni, topology.AuthorityNone, topology.AuthorityMonitor)
	if c.Authority == topology.AuthorityMonitor {
		c.Monitor.Monitors = []topology.Address{{Host: documentationHost(0), Port: 5432}} // it stands for any
		c.Monitor.Formation, c.Monitor.Group = pick(d, "default", "no"), d.IntN(3)
	}
	if c.Authority == topology.AuthorityPatroni && d.yes() {
		c.Patroni.Scope, c.Patroni.Namespace = "other", "db"
	}
	for i, name := range []string{"n1", "no", "012"} {
		c.Nodes = append(c.Nodes, topology.Node{
			Name: name, Address: topology.Address{Host: documentationHost(i), Port: 5432}, Tags: map[string]string{"zone": pick(d, "a", "012", "no")},
		})
	}
	c.Policy.SilentAfter = pick(d, 2*time.Second, 1900*time.Millisecond)
	c.Policy.Flap.HoldDown = pick(d, 30*time.Second, 31*time.Second)
	c.Policy.AuthorityLost = pick(d, topology.LostHold, topology.LostSQLOnly)
	if d.yes() {
		sel, _ := topology.ParseSelector("zone in (a, b), !old")
		c.Pools = append(c.Pools, config.Pool{
			Name: "reports", Mode: topology.ModeRead, Listen: "127.0.0.1:5001", Select: sel, MaxLag: 16 << 20, MaxLagHard: 1 << 30,
			Fallback: topology.FallbackNone, FallbackWeight: 100, Weights: config.Weights{"n1": 50}, Port: 6432, PortCheck: topology.PortCheckConnect,
			Sessions: config.Sessions{topology.CodeLag: topology.Down, topology.CodePort: topology.Drain},
		})
	}
	return c
}

func (d *dice) observation(cluster string, start topology.Clock, at time.Duration) topology.Observation {
	node := pick(d, "n1", "no", "012", "a b: c")
	src := pick(d, topology.SourceID{Kind: topology.SourcePostgres, Name: node}, topology.SourceID{Kind: topology.SourceConsul, Name: "x/y"},
		topology.SourceID{Kind: topology.SourceLocal})
	o := topology.Observation{
		Cluster: pick(d, cluster, cluster, "other", ""), Source: src, Seq: 1 + d.Uint64(),
		At: topology.Clock{Mono: start.Mono.Add(at), Wall: start.Wall.Add(at)},
	}
	if d.IntN(5) == 0 { // it arrived a little later than others, or the wall clock was set
		late := pick(d, time.Second, -time.Millisecond)
		o.At.Mono, o.At.Wall = o.At.Mono.Add(late), o.At.Wall.Add(time.Duration(d.Int64N(1e9)))
	}
	o.AskedAt = pick(d, o.At, topology.Clock{Mono: o.At.Mono.Add(-time.Second), Wall: o.At.Wall.Add(-time.Second)}, topology.Clock{})
	if d.IntN(3) == 0 {
		o.Failure = &topology.Failure{
			Class: pick(d, topology.FailTimeout, topology.FailRefused, "odd"), Text: d.text(), Node: pick(d, node, ""),
			Address: d.address(), Asked: pick(d, topology.ProbeFull, topology.ProbePort, ""), Port: uint16(d.Uint32()),
		}
		return o
	}
	switch d.IntN(4) {
	case 0:
		o.Port = &topology.PortOpen{Node: pick(d, node, "other"), Address: d.address(), Port: uint16(d.Uint32())}
	case 1:
		o.Local = &topology.Local{Isolated: d.tri()}
	case 2:
		o.Probe = d.probe(node)
	}
	if d.yes() || o.Port == nil && o.Local == nil && o.Probe == nil {
		o.Authority = d.authority()
		o.Nodes = &topology.NodeList{ConfirmedEmpty: d.yes()}
		for range d.IntN(3) {
			o.Nodes.Nodes = append(o.Nodes.Nodes, topology.Node{Name: d.text(), Address: d.address(), Tags: d.tags()})
		}
	}
	return o
}

func (d *dice) tri() topology.Tri { return pick(d, topology.Unknown, topology.Yes, topology.No) }
func (d *dice) lsn() topology.LSN { return pick(d, 0, topology.LSN(d.Uint64()), 50_000_000) }

func (d *dice) timeline() topology.Timeline { return pick(d, 0, topology.Timeline(d.Uint32()), 5) }

func (d *dice) duration() time.Duration {
	return pick(d, 0, -1, time.Duration(d.Uint64()), 1500*time.Millisecond)
}

func (d *dice) time() time.Time {
	return pick(d, time.Time{}, time.Date(2026, 5, 1, 3, 4, 5, d.IntN(1e9), time.UTC))
}

func (d *dice) address() topology.Address {
	return pick(d, topology.Address{}, topology.Address{Host: "192.0.2.11", Port: 5432}, topology.Address{Host: "2001:db8::1", Port: 1},
		topology.Address{Host: "db.example.net", Port: 65535})
}

func (d *dice) text() string {
	words := []string{
		"", "plain", "no", "~", "012", "1e3", "0x1F", "true", "2026-01-01", "a: b", "- x", "# no comment", "'", `"`, "{a}", "[1", "*a", "&a", "!t", "%", "@", "`", "|", ">",
		"two\nlines", "\n", " blank ends ", "tab\there", "\x00\x01\x7f", "\u0085\u2028\u2029\ufeff", "日本語 🙂", "\r\n", "<<", "=", "null", "y", "connect: refused; next in 5 s",
	}
	s := words[d.IntN(len(words))]
	if d.IntN(4) == 0 {
		s += words[d.IntN(len(words))]
	}
	return s
}

func (d *dice) tags() map[string]string {
	out := make(map[string]string)
	for range d.IntN(3) {
		out[d.text()] = d.text()
	}
	return out
}

func (d *dice) probe(node string) *topology.Probe {
	p := &topology.Probe{
		Node: pick(d, node, "x"), Address: d.address(), Kind: pick(d, topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin),
		InRecovery: d.tri(), ReadOnly: d.tri(), SystemID: d.Uint64(), Timeline: d.timeline(), WriteLSN: d.lsn(), ReceiveLSN: d.lsn(),
		ReplayLSN: d.lsn(), ReplayedAt: d.time(), ReplayPaused: d.tri(), ApplyDelay: d.duration(), Upstream: d.tri(),
		Receiver: topology.Receiver{
			Running: d.tri(), Streaming: d.tri(), Timeline: d.timeline(), LatestEnd: d.lsn(), SenderHost: d.text(), SenderPort: uint16(d.Uint32()),
			MessageAge: d.duration(),
		},
		StartedAt: d.time(), ServerVersion: pick(d, 0, 170004), SyncWaiters: pick(d, -1, 0, 7),
	}
	for i := range d.IntN(3) {
		p.Standbys = append(p.Standbys, topology.Standby{Name: d.text() + fmt.Sprint(i), State: d.text(), SyncState: d.text(), ReplayLSN: d.lsn()})
	}
	return p
}

func (d *dice) authority() *topology.Authority {
	a := &topology.Authority{
		Leader: d.text(), SessionAgrees: d.tri(), Pause: d.tri(), Failsafe: d.tri(), StandbyCluster: d.yes(), TTL: d.duration(), LoopWait: d.duration(),
		RetryTimeout: d.duration(), SystemID: d.Uint64(), Timeline: d.timeline(), Optime: d.lsn(), OptimeIndex: d.Uint64(), SyncMode: d.text(),
	}
	for range d.IntN(3) {
		a.SyncStandbys = append(a.SyncStandbys, d.text())
		a.Members = append(a.Members, topology.Member{
			Name: d.text(), Role: d.text(), State: d.text(), Timeline: d.timeline(), LSN: d.lsn(), Address: d.address(), APIURL: d.text(), Tags: d.tags(),
			Application: d.text(), Assigned: d.assigned(),
		})
	}
	if d.yes() {
		a.Monitor = &topology.Monitor{
			Version: d.text(), SyncStandbys: d.IntN(3), Uptime: d.duration(), UnhealthyAfter: d.duration(), StartupGrace: d.duration(), Assumed: d.yes(),
			Check: topology.HealthCheck{Period: d.duration(), Timeout: d.duration(), MaxRetries: d.IntN(3), RetryDelay: d.duration()},
		}
		for range d.IntN(3) {
			a.Monitor.Claimants = append(a.Monitor.Claimants, d.text())
		}
	}
	return a
}

func (d *dice) assigned() *topology.Assignment {
	if d.yes() {
		return nil
	}
	return &topology.Assignment{
		Goal: d.text(), Reported: d.text(), Writes: d.tri(), Promoting: d.yes(), Reads: d.verdict(), Stale: d.yes(), Operator: d.yes(), Why: d.text(),
		Running: d.tri(), ReportAge: d.duration(), Health: d.tri(), HealthAge: d.duration(), ChangeAge: d.duration(), Priority: d.IntN(200) - 50, Quorum: d.yes(),
	}
}

// TestTooLarge: a file that is too large for the decoder is refused, also in the middle of a list.
func TestTooLarge(t *testing.T) {
	one := "{source: postgres/a, probe: {kind: role, in_recovery: no, read_only: no}}"
	text := "cluster: {nodes: {a: '192.0.2.1:5432'}}\nprobing: off\nsteps:\n- {at: 0s, observe: &all [" + strings.Repeat(one+", ", 1000) + one + "]}\n" +
		strings.Repeat("- {at: 1s, observe: *all}\n", 110)
	if _, err := Parse("large.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "the file is too large once its anchors are followed") {
		t.Errorf("got %v", err)
	}
}
