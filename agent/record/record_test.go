package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
)

var (
	start = topology.Clock{Mono: topology.Mono(time.Hour), Wall: time.Date(2026, 5, 1, 6, 0, 0, 0, time.UTC)}
	a, b  = topology.Address{Host: "10.0.0.1", Port: 5432}, topology.Address{Host: "db2.corp.example", Port: 5433}
)

// at is a moment of both clocks, a wall clock that goes a little differently.
func at(d time.Duration) topology.Clock {
	return topology.Clock{Mono: start.Mono.Add(d), Wall: start.Wall.Add(d)}
}

// cluster is one of two nodes without an authority.
func cluster() config.Cluster {
	c := config.DefaultCluster("main")
	c.Nodes = config.Nodes{{Name: "a", Address: a}, {Name: "b", Address: b}}
	return c
}

func begin() tap.Line {
	c := cluster()
	p := c.Postgres
	c.Postgres = config.Postgres{}
	return tap.Line{Kind: tap.KindBegin, Begin: &tap.Begin{
		Version: "v1", At: start, User: "pgsteer", Database: "postgres",
		Cluster: tap.Cluster{Cluster: c, Postgres: tap.Paces{
			Interval: p.Interval, ConnectTimeout: p.ConnectTimeout, QueryTimeout: p.QueryTimeout, LoginEvery: p.LoginEvery,
		}},
	}}
}

func seen(o topology.Observation) tap.Line {
	return tap.Line{Kind: tap.KindObservation, Observation: (*tap.Observation)(&o)}
}

func nodes() topology.Observation {
	return topology.Observation{
		Cluster: "main", Source: topology.SourceID{Kind: topology.SourceFile, Name: "config"}, Seq: 1, AskedAt: at(-time.Hour), At: at(-time.Hour),
		Nodes: &topology.NodeList{Nodes: []topology.Node{{Name: "a", Address: a}, {Name: "b", Address: b}}},
	}
}

// full is the answer of a primary or standby.
func full(node string, seq uint64, when time.Duration) topology.Observation {
	p := &topology.Probe{
		Node: node, Address: a, Kind: topology.ProbeFull, InRecovery: topology.No, ReadOnly: topology.No, SystemID: 7386112233445566778, Timeline: 3,
		WriteLSN: 0x3000060, ServerVersion: 170004,
	}
	if node == "b" {
		p.Address, p.InRecovery, p.ReadOnly, p.WriteLSN, p.ReceiveLSN, p.ReplayLSN, p.Upstream = b, topology.Yes, topology.Yes, 0, 0x3000060, 0x3000060, topology.Yes
		p.Receiver = topology.Receiver{Running: topology.Yes, Streaming: topology.Yes, Timeline: 3, LatestEnd: 0x3000060, SenderHost: a.Host, SenderPort: a.Port}
	}
	return topology.Observation{
		Cluster: "main", Source: topology.SourceID{Kind: topology.SourcePostgres, Name: node}, Seq: seq, AskedAt: at(when - time.Millisecond), At: at(when), Probe: p,
	}
}

// decided is a decision with this writer; "=": the same as before.
func decided(when time.Duration, writer string) tap.Line {
	d := &tap.Decision{At: at(when)}
	if writer != "=" {
		d.Snapshot = &topology.Snapshot{Cluster: "main", Writer: writer, Pools: []topology.PoolVerdicts{
			{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{
				{Node: "a", Verdict: topology.Up, Weight: 100}, {Node: "b", Verdict: topology.Down},
			}},
			{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{
				{Node: "a", Verdict: topology.Drain}, {Node: "b", Verdict: topology.Up, Weight: 100},
			}},
		}}
	}
	return tap.Line{Kind: tap.KindDecision, Decision: d}
}

// stream is the text of lines.
func stream(t *testing.T, all ...tap.Line) io.Reader {
	t.Helper()
	var b bytes.Buffer
	for _, l := range all {
		if err := json.NewEncoder(&b).Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	return &b
}

func read(t *testing.T, all ...tap.Line) *Session {
	t.Helper()
	s, err := Read(t.Context(), stream(t, all...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// healthy is a recording of three seconds in which nothing happens.
func healthy() []tap.Line {
	return []tap.Line{
		begin(), seen(nodes()), seen(full("a", 1, -300*time.Millisecond)), seen(full("b", 1, -200*time.Millisecond)), decided(0, "a"),
		seen(full("a", 2, 700*time.Millisecond)), decided(700*time.Millisecond, "="), seen(full("b", 2, 800*time.Millisecond)), decided(801*time.Millisecond, "="),
		seen(full("a", 3, 1700*time.Millisecond)), seen(full("b", 3, 1700*time.Millisecond)), decided(1701*time.Millisecond, "="), decided(2600*time.Millisecond, "="),
	}
}

func TestAHealthyCluster(t *testing.T) {
	s := read(t, append(healthy(), tap.Line{Kind: tap.KindEnd, End: "the end"}, seen(full("a", 4, 3*time.Second)), decided(3*time.Second, "b"))...)
	if s.Ended != "the end" || s.Lost != 0 || s.Observations() != 7 || s.Lasted() != 2600*time.Millisecond {
		t.Errorf("ended %q, lost %d, %d observations in %s", s.Ended, s.Lost, s.Observations(), s.Lasted())
	}
	var text bytes.Buffer
	if err := s.Encode(&text); err != nil {
		t.Fatal(err)
	}
	if n, err := Check(text.Bytes()); err != nil || n != 0 {
		t.Errorf("%d expectations fail, %v\n%s", n, err, &text)
	}
	for _, want := range []string{
		"Recorded from an agent of version v1, 2.6s from 2026-05-01T06:00:00Z on: 7 observations.", "It ended early: the end.",
		"note: 'the agent: writer a; primary: a up/no_evidence, b down/no_evidence; replica:", "- at: 2.6s\n  expect:\n    writer: a\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the scenario lacks %q:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "masked") || strings.Contains(text.String(), "missing") {
		t.Errorf("it says what is not so:\n%s", &text)
	}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// line is an observation that is numbered by its time.
func line(n int) tap.Line { return seen(full("a", uint64(n), ms(n))) }

func round(when time.Duration, seqs ...uint64) simulate.Round {
	r := simulate.Round{At: at(when)}
	for _, n := range seqs {
		r.Observations = append(r.Observations, full("a", n, ms(int(n))))
	}
	return r
}

func still(r simulate.Round) simulate.Round {
	r.Still = true
	return r
}

// rounds are the rounds of lines that follow a first decision.
var rounds = []struct {
	name string
	more []tap.Line
	want []simulate.Round
	lost uint64
}{
	{"only the beginning", nil, []simulate.Round{round(0)}, 0},
	{"decisions without news", []tap.Line{decided(ms(5), "="), decided(ms(9), "=")}, []simulate.Round{round(ms(9))}, 0},
	{
		"two at once",
		[]tap.Line{line(3), line(4), decided(ms(5), "="), line(6), decided(ms(7), "=")},
		[]simulate.Round{round(ms(5), 3, 4), round(ms(7), 6), round(ms(7))},
		0,
	},
	{"what nobody decided on is left out", []tap.Line{line(3), decided(ms(5), "="), line(6)}, []simulate.Round{round(ms(5), 3), round(ms(5))}, 0},
	{
		"the agent stood still",
		[]tap.Line{line(3), decided(ms(4), "="), decided(ms(900), "="), line(3500), decided(ms(3600), "=")},
		[]simulate.Round{round(ms(4), 3), round(ms(900)), still(round(ms(3600), 3500)), round(ms(3600))},
		0,
	},
	{
		"decisions were lost",
		[]tap.Line{
			line(3), decided(ms(4), "="), {Kind: tap.KindLost, Lost: 5}, line(3500), decided(ms(3600), "="), {Kind: tap.KindLost, Lost: 2},
		},
		[]simulate.Round{round(ms(4), 3), round(ms(3600), 3500), round(ms(3600))},
		7,
	},
	{"kinds of some day", []tap.Line{{Kind: "news"}, {Kind: tap.KindObservation}, {Kind: tap.KindDecision}}, []simulate.Round{round(0)}, 0},
}

// TestRounds: what is seen belongs to the decision that follows it.
func TestRounds(t *testing.T) {
	for _, tt := range rounds {
		t.Run(tt.name, func(t *testing.T) {
			s := read(t, append([]tap.Line{begin(), seen(full("a", 1, 0)), decided(0, "a")}, tt.more...)...)
			if d := cmp.Diff(tt.want, s.Recording.Rounds[1:], cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if s.Lost != tt.lost || s.Ended != "the agent went away" {
				t.Errorf("lost %d, want %d; ended %q", s.Lost, tt.lost, s.Ended)
			}
			var text bytes.Buffer
			if err := s.Encode(&text); err != nil {
				t.Fatal(err)
			}
			stands := strings.Contains(text.String(), "- at: 900ms\n  agent: {stop: 2.7s}\n- at: 3.6s\n")
			if stands != slices.ContainsFunc(tt.want, func(r simulate.Round) bool { return r.Still }) {
				t.Errorf("a standstill is told wrongly:\n%s", &text)
			}
			if _, err := Check(text.Bytes()); err != nil {
				t.Error(err)
			}
			if missing := fmt.Sprintf("%d messages of the agent are missing", tt.lost); strings.Contains(text.String(), missing) != (tt.lost > 0) {
				t.Errorf("what was lost is told wrongly:\n%s", &text)
			}
		})
	}
}

// A cluster whose nodes come from elsewhere has those that the agent knew.
func TestNodesFromElsewhere(t *testing.T) {
	lines := healthy()
	lines[0].Begin.Cluster.Nodes = nil
	lines[0].Begin.Saved = &topology.Saved{Version: 1, Cluster: "main", Writer: "a", Nodes: nodes().Nodes.Nodes, SystemID: 7386112233445566778, Timeline: 3}
	s := read(t, lines...)
	var text bytes.Buffer
	if err := s.Encode(&text); err != nil {
		t.Fatal(err)
	}
	if n, err := Check(text.Bytes()); err != nil || n != 0 {
		t.Errorf("%d expectations fail, %v\n%s", n, err, &text)
	}
}

// The wall clock's last digits are left out, a change of it is not.
func TestTheWallClock(t *testing.T) {
	o := full("a", 1, time.Second)
	o.At.Wall, o.AskedAt.Wall = o.At.Wall.Add(317*time.Nanosecond), o.AskedAt.Wall.Add(time.Second)
	s := read(t, begin(), seen(o), decided(time.Second, "a"))
	got := s.Recording.Rounds[0].Observations[0]
	if !got.At.Wall.Equal(at(time.Second).Wall) || !got.AskedAt.Wall.Equal(at(1999*time.Millisecond).Wall) {
		t.Errorf("the clocks are %v and %v", got.At, got.AskedAt)
	}
}

func TestNothingWasRecorded(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		text io.Reader
		want string
	}{
		{"no line", t.Context(), strings.NewReader(""), "nothing was recorded: the agent went away"},
		{"half a line", t.Context(), strings.NewReader(`{"kind":"begin","beg`), "the agent went away"},
		{"no JSON", t.Context(), strings.NewReader("<html>"), "nothing was recorded: the connection to the agent failed: invalid character"},
		{"a broken connection", t.Context(), iotest.ErrReader(errors.New("reset")), "the connection to the agent failed: reset"},
		{"ended too early", over, iotest.ErrReader(context.Canceled), "nothing was recorded: it was ended before the first decision"},
		{"no decision", t.Context(), stream(t, begin(), seen(nodes())), "the agent went away"},
		{"no beginning", t.Context(), stream(t, seen(nodes()), decided(0, "a")), "the agent went away"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := Read(tt.ctx, tt.text, func() { t.Error("it began") }); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v, want %q", s, err, tt.want)
			}
		})
	}
}

// An end that was wanted is none that must be explained.
func TestAWantedEnd(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	end()
	began := 0
	s, err := Read(ctx, io.MultiReader(stream(t, healthy()...), iotest.ErrReader(context.Canceled)), func() { began++ })
	if began != 1 {
		t.Errorf("it began %d times", began)
	}
	if err != nil || s.Ended != "" || s.Observations() != 7 {
		t.Errorf("%v; ended %q", err, s.Ended)
	}
}

// A full session can still be played, whatever it consists of.
func TestAFullSession(t *testing.T) {
	standbys := func(o *topology.Observation) {
		for i := range 8 {
			o.Probe.Standbys = append(o.Probe.Standbys, topology.Standby{Name: fmt.Sprint("standby", i), State: "streaming", SyncState: "async", ReplayLSN: 5})
		}
	}
	members := func(o *topology.Observation) {
		o.Probe, o.Source = nil, topology.SourceID{Kind: topology.SourceConsul, Name: "main"}
		o.Authority, o.Nodes = &topology.Authority{Leader: "a", SessionAgrees: topology.Yes, Timeline: 3, Optime: 5}, nodes().Nodes
		for i := range 5 {
			o.Authority.Members = append(o.Authority.Members, topology.Member{
				Name: fmt.Sprint("n", i), Role: "replica", State: "running", Timeline: 3, LSN: 5, Address: a, APIURL: "http://10.0.0.1:8008/patroni",
			})
		}
	}
	tick := func(o *topology.Observation) {
		o.Probe = &topology.Probe{Node: o.Probe.Node, Address: o.Probe.Address, Kind: topology.ProbeRole, InRecovery: o.Probe.InRecovery, ReadOnly: o.Probe.ReadOnly}
	}
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	for n := 0; text.Len() < limit+10_000; n++ {
		o, when := full([]string{"a", "b"}[n%2], uint64(n+1), time.Duration(n)*time.Millisecond), time.Duration(n)*time.Millisecond
		[]func(*topology.Observation){standbys, members, tick, tick}[n%4](&o)
		all := []tap.Line{seen(o), decided(when, "=")}
		if n == 0 {
			all = []tap.Line{begin(), seen(nodes()), seen(full("a", 1, 0)), seen(full("b", 1, 0)), decided(0, "a")}
		}
		for _, l := range all {
			if err := lines.Encode(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	s, err := Read(t.Context(), &text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.Ended, "pgsteer simulate reads no file that is much larger") {
		t.Errorf("%d observations, ended %q", s.Observations(), s.Ended)
	}
	var scenario bytes.Buffer
	if err := s.Encode(&scenario); err != nil {
		t.Fatal(err)
	}
	if _, err := simulate.Parse("full.yaml", scenario.Bytes()); err != nil {
		t.Errorf("%d observations, %d bytes: %.2000v", s.Observations(), scenario.Len(), err)
	}
}
