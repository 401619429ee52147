package xds

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// scenario is one section of testdata/scenarios/*.txt, see README.md there.
type scenario struct {
	title     string
	protocols []string
	steps     []step
}

// step is what the client or the servers do, and what the client receives.
type step struct {
	at   int // line
	text string
	want map[string][]string // by server
	why  string              // of a difference
}

// Servers in a scenario's file, and how a stream may end there.
const (
	ours    = "ours"
	theirs  = "reference"
	closed  = "closed"
	endless = "endless"
)

// TestScenarios plays every scenario with the same client against our server and
// against go-control-plane's Mux and Linear caches. What differs is written in the
// file with its reason; a difference that is not, fails, and so does a reason
// without a difference.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		for _, sc := range readScenarios(t, file) {
			for _, protocol := range sc.protocols {
				t.Run(strings.Join([]string{filepath.Base(file), sc.title, protocol}, "/"), func(t *testing.T) { sc.play(t, protocol) })
			}
		}
	}
}

func (sc scenario) play(t *testing.T, protocol string) {
	t.Helper()
	got := map[string][][]string{}
	for server, start := range map[string]func(testing.TB) served{ours: newOurs, theirs: newReference} {
		synctest.Test(t, func(t *testing.T) {
			p := &player{t: t, start: start, protocol: protocol, clusters: make(map[string]string)}
			p.restart()
			for _, s := range sc.steps {
				got[server] = append(got[server], p.do(s))
			}
		})
	}
	over := false // theirs: it hung up, or went on without end
	for i, s := range sc.steps {
		for _, server := range []string{ours, theirs} {
			if server == theirs && over {
				continue
			}
			if diff := cmp.Diff(s.want[server], got[server][i]); diff != "" {
				t.Errorf("line %d, %q: %s sent (-want +got):\n%s", s.at, s.text, server, diff)
			}
		}
		if differs := !over && !slices.Equal(s.want[ours], s.want[theirs]); differs != (s.why != "") {
			t.Errorf("line %d, %q: a difference needs a reason, and a reason a difference", s.at, s.text)
		}
		over = over || slices.Contains(s.want[theirs], closed) || slices.Contains(s.want[theirs], endless)
	}
}

func readScenarios(t *testing.T, file string) []scenario {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []scenario
	for i, line := range strings.Split(string(b), "\n") {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "" || strings.HasPrefix(word, "#"):
			continue
		case word == "==":
			all = append(all, scenario{title: rest})
			continue
		case len(all) == 0:
			t.Fatalf("%s:%d: a step without a scenario", file, i+1)
		}
		sc := &all[len(all)-1]
		switch {
		case word == "protocols":
			sc.protocols = strings.Fields(rest)
		case line[0] != ' ':
			sc.steps = append(sc.steps, step{at: i + 1, text: line, want: make(map[string][]string)})
		case len(sc.steps) == 0 || !sc.steps[len(sc.steps)-1].expect(word, rest):
			t.Fatalf("%s:%d: %q is no expectation of a step", file, i+1, line)
		}
	}
	return all
}

func (s *step) expect(who, what string) bool {
	what = strings.TrimSpace(what)
	switch who {
	case "both":
		s.want[ours], s.want[theirs] = append(s.want[ours], what), append(s.want[theirs], what)
	case ours, theirs:
		s.want[who] = append(s.want[who], what)
	case "why":
		s.why = what
	default:
		return false
	}
	return true
}

// player is one client at one server.
type player struct {
	t        *testing.T
	start    func(testing.TB) served
	server   served
	protocol string
	client   speaker
	clusters map[string]string // what is set, by cluster
	order    []string          // of clusters
	turn     uint64            // of decisions
	over     bool              // the server hung up, or goes on without end
}

// speaker is a client of one protocol. It keeps what a client keeps.
type speaker interface {
	// hello begins a stream, goodbye ends it.
	hello(served)
	goodbye()
	ask(k kind, names []string)
	unask(k kind, names []string)
	// take returns what came by now, and false when the stream has ended.
	take() ([]reply, bool)
	ack(reply)
	nack(reply)
	// forget drops what was received.
	forget()
	// mode sets what is done with answers of a kind.
	mode(k kind, m mode)
}

// mode is what a client does with an answer.
type mode int

const (
	accepts mode = iota
	refuses
	holds // until it is told to acknowledge
)

// do does one step and returns what was received until all is quiet.
func (p *player) do(s step) []string {
	p.t.Helper()
	if p.over {
		return nil
	}
	f := strings.Fields(s.text)
	switch f[0] {
	case "set":
		p.set(f[1], f[2])
	case "drop":
		p.server.drop(f[1])
		delete(p.clusters, f[1])
		p.order = slices.DeleteFunc(p.order, func(c string) bool { return c == f[1] })
	case "restart":
		p.client.goodbye()
		p.restart()
	case "reconnect":
		p.client.goodbye()
		p.client.hello(p.server)
	case "forget":
		p.client.forget()
	default:
		p.say(s, f)
	}
	return p.listen()
}

// say is what a step makes the client say of one type.
func (p *player) say(s step, f []string) {
	p.t.Helper()
	k, names := kinds, []string(nil)
	if len(f) > 1 {
		k, names = p.kind(f[1]), p.names(f[1], f[2:])
	}
	switch f[0] {
	case "ask":
		p.client.ask(k, names)
	case "unask":
		p.client.unask(k, names)
	case "hold":
		p.client.mode(k, holds)
	case "refuse":
		p.client.mode(k, refuses)
	case "accept": // what is held is acknowledged
		p.client.mode(k, accepts)
	default:
		p.t.Fatalf("line %d: %q is no step", s.at, s.text)
	}
}

// restart replaces the server by one that has what is set.
func (p *player) restart() {
	p.server = p.start(p.t)
	for _, c := range p.order {
		p.server.set(p.decision(c))
	}
	synctest.Wait()
	if p.client == nil {
		p.client = newSpeaker(p.t, p.protocol)
	}
	p.client.hello(p.server)
}

func (p *player) set(cluster, writer string) {
	if p.clusters[cluster] == "" {
		p.order = append(p.order, cluster)
	}
	p.clusters[cluster] = writer
	p.server.set(p.decision(cluster))
}

// decision of a cluster: a node that writes and two that read; "none": nobody
// writes; "empty": it has no pools.
func (p *player) decision(cluster string) *topology.Snapshot {
	p.turn++
	verdicts := []topology.Verdict{down, down, down}
	if n, ok := strings.CutPrefix(p.clusters[cluster], "n"); ok && n != "one" {
		verdicts[n[0]-'1'] = up
	}
	snap := decision(cluster, p.turn, verdicts...)
	if p.clusters[cluster] == "empty" {
		snap.Pools = nil
	}
	return snap
}

// kind of a word; other words are types that nobody serves.
func (p *player) kind(word string) kind {
	for k := range kinds {
		if k.String() == word {
			return k
		}
	}
	return kinds
}

// names adds the hash to names of endpoints of pools.
func (p *player) names(word string, names []string) []string {
	var all []string
	for _, name := range names {
		cluster, pool, _ := strings.Cut(name, "/")
		if word == kindEndpoint.String() && (pool == "primary" || pool == "replica") {
			name = endpointsOf(p.t, decision(cluster, 1, up, down, down), pool)
		}
		all = append(all, name)
	}
	return all
}

// mostAnswers bounds what one step may bring: a server that answers every refusal
// with the same bytes would go on for ever.
const mostAnswers = 50

func (p *player) listen() []string {
	p.t.Helper()
	var got []string
	for {
		synctest.Wait()
		replies, alive := p.client.take()
		for _, m := range replies {
			got = append(got, m.text)
			p.client.ack(m)
		}
		switch {
		case !alive:
			p.over = true
			return append(got, closed)
		case len(replies) == 0:
			return got
		case len(got) > mostAnswers:
			p.over = true
			return append(slices.Compact(got), endless)
		}
	}
}

// reply is an answer in the form in which scenarios have it.
type reply struct {
	kind kind
	text string
	m    any
}

// plain writes an answer without versions, nonces, hashes and addresses:
// "EDS main/primary[n1] -gone".
func plain(k kind, texts []string) string {
	words := []string{k.String()}
	for _, t := range texts {
		name, content, _ := strings.Cut(t, " ")
		if k != kindCluster && name[0] != '-' {
			content = strings.NewReplacer("10.0.0.", "n", "=healthy", "").Replace(content)
			name = fmt.Sprintf("%s[%s]", poolOf(name), content)
		}
		words = append(words, poolOf(name))
	}
	if len(words) == 1 {
		words = append(words, "nothing")
	}
	slices.Sort(words[1:])
	return strings.Join(words, " ")
}
