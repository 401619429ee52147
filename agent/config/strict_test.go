package config

import (
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// play is a file of the kind that others make of Decode.
type play struct {
	About   string                    `yaml:"about"`
	Name    string                    `yaml:"name"`
	Cluster Cluster                   `yaml:"cluster"`
	Every   time.Duration             `yaml:"every"`
	Metrics map[string]float64        `yaml:"metrics"`
	Ports   map[uint16]string         `yaml:"ports"`
	Up      map[string][]string       `yaml:"up"`
	Weights map[string]map[string]int `yaml:"weights"`
	Away    map[string]*away          `yaml:"away"`
	Steps   []step                    `yaml:"steps"`
	Mode    topology.Mode             `yaml:"mode"`
	Size    topology.Size             `yaml:"size"`
	ID      uint64                    `yaml:"id"`
	Shift   int64                     `yaml:"shift"`
	Raw     yaml.Node                 `yaml:"raw"`
	Later   Value                     `yaml:"later"`
	Absent  Value                     `yaml:"absent"`
	Words   map[string]word           `yaml:"words"`
	Private string
}

type away struct {
	Reason string        `yaml:"reason"`
	For    time.Duration `yaml:"for"`
}

type step struct {
	At time.Duration `yaml:"at"`
}

// word is a word, or a map with one.
type word struct{ is string }

func (w *word) DecodeYAML(v Value) {
	if text, ok := v.Text(); ok {
		w.is = text
		return
	}
	var long struct {
		Is string `yaml:"is"`
	}
	v.Into(&long)
	w.is = long.Is
}

func (p *play) DecodeYAML(v Value) {
	name, _ := v.Key("name").Text()
	p.Cluster, p.Every = DefaultCluster(name), time.Second
	type plain play
	if !v.Into((*plain)(p)) {
		return
	}
	for key, w := range v.Key("words").Entries() {
		if text, _ := w.Text(); text == "bad" {
			w.Fault("%s is no word: %s", key, UnknownWord(text, []string{"good", "band"}))
		}
	}
	for i, s := range v.Key("steps").Elements() {
		if p.Steps[i].At == 0 {
			s.Key("at").Fault("step %d has no time", i)
		}
	}
	if p.Mode == topology.ModeWrite {
		p.Absent.Fault("absent is needed for `mode: write`")
	}
	if p.About == "" {
		v.Key("about").Fault("say what it is about")
	}
}

func TestDecode(t *testing.T) {
	var got play
	err := Decode("play.yaml", []byte(`
about: all kinds of fields
cluster: &c
  nodes: {a: 10.0.0.1:5432}
  policy: {silent_after: 3s}
name: alpha
every: 250ms
metrics: {"x{a=\"b\"}": 1.5}
ports: {6432: ok}
up: {primary: [a], replica: []}
weights: {replica: {a: 50}}
away: {a: {reason: kernel, for: 30m}, b: ~}
steps: [{at: 1s}, {at: 2s}]
mode: read
size: 16MB
id: 18446744073709551615
shift: -7
raw: {leader: a}
later: {at: 5s}
words: {x: one, y: {is: two}}
`), &got)
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultCluster("alpha")
	c.Nodes = Nodes{{Name: "a", Address: topology.Address{Host: "10.0.0.1", Port: 5432}}}
	c.Policy.SilentAfter = 3 * time.Second
	compare(t, c, got.Cluster)
	compare(t, 250*time.Millisecond, got.Every)
	compare(t, map[string]float64{`x{a="b"}`: 1.5}, got.Metrics)
	compare(t, map[uint16]string{6432: "ok"}, got.Ports)
	compare(t, map[string][]string{"primary": {"a"}, "replica": {}}, got.Up)
	compare(t, map[string]map[string]int{"replica": {"a": 50}}, got.Weights)
	compare(t, map[string]*away{"a": {"kernel", 30 * time.Minute}, "b": nil}, got.Away)
	compare(t, []step{{time.Second}, {2 * time.Second}}, got.Steps)
	compare(t, []any{topology.ModeRead, topology.Size(16 << 20), uint64(18446744073709551615), int64(-7)},
		[]any{got.Mode, got.Size, got.ID, got.Shift})
	compare(t, []int{int(yaml.MappingNode), 18}, []int{int(got.Raw.Kind), got.Raw.Line})
	checkOwnForms(t, &got)
}

// checkOwnForms looks at the fields that decode themselves or not at all.
func checkOwnForms(t *testing.T, got *play) {
	t.Helper()
	if got.Words["x"].is != "one" || got.Words["y"].is != "two" {
		t.Errorf("got %v", got.Words)
	}
	var later step
	line, column := got.Later.Place()
	if ok := got.Later.Into(&later); !ok || later.At != 5*time.Second || line != 19 || column != 1 {
		t.Errorf("later: %v %v at %d:%d", ok, later, line, column)
	}
	if line, _ := got.Absent.Place(); got.Absent.Written() || line != 0 || !got.Absent.Into(&later) {
		t.Error("an absent value is there")
	}
}

func TestDecodeFaults(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown keys", "abuot: x\nsteps: [{att: 1s}]\npolicy: {}\n", `
p:1:1: unknown key ` + "`abuot`, did you mean `about`?" + `
p:2:10: unknown key ` + "`att`, did you mean `at`?" + `
p:3:1: unknown key ` + "`policy`, known here: about, name, cluster, every, metrics, ports, up, weights, away, steps, mode, size, id, shift, raw, later, absent, words"},
		{"scalars", "metrics: {a: x}\nports: {70000: ok}\nid: -1\nshift: 1.5\nevery: 1\nmode: raed\naway: {a: {for: 5}}\nweights: {a: {b: 1.5}}", `
p:1:14: ` + "`x` is not a number" + `
p:2:9: ` + "`70000` is not a whole number from 0 to 65535" + `
p:3:5: ` + "`-1` is not a whole number from 0 to 18446744073709551615" + `
p:4:8: ` + "`1.5` is not a whole number" + `
p:5:8: duration ` + "`1` has no unit, write 1s or 1ms" + `
p:6:7: ` + "`raed` is none of write, read; did you mean `read`?" + `
p:7:17: duration ` + "`5` has no unit, write 5s or 5ms" + `
p:8:18: ` + "`1.5` is not a whole number from 0 to 1000000"},
		{"forms", "metrics: [1]\nup: {primary: a}\nsteps: {}\nwords: {x: {was: y}}", `
p:1:10: this is a map of keys and values, not a list
p:2:15: this is a list, write [a]
p:3:8: this is a list
p:4:13: unknown key ` + "`was`, known here: is"},
		{"sense", "cluster: {authority: patroni}\nwords: {x: bad}\nsteps: [{at: 0s}, {}]\n", `
p:1:1: say what it is about
p:2:12: x is no word: ` + "`bad` is none of good, band; did you mean `band`?" + `
p:3:14: step 0 has no time
p:3:19: step 1 has no time`},
		{"what is not written", "about: x\nmode: write\n", "\np:1:1: absent is needed for `mode: write`"},
		{"the cluster's", "about: x\ncluster:\n  authority: patroni\n  policy: {kill_after: 1s, silent_after: 1500ms}\n  pools: {p: {}}\n", `
p:4:24: silent_after 1.5s is above kill_after 1s: a node stops taking sessions before it loses those it has
p:4:42: silent_after 1.5s is below interval + query_timeout (1s + 800ms) of the probes: a slow answer would count as none
p:5:11: pool p has no mode, write or read; only the names primary and replica imply one`},
		{"no map", "- a\n", "\np:1:1: the file is a map of keys and values, not a list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Decode("p", []byte(tt.text), new(play))
			faults, ok := err.(*Faults) //nolint:errorlint // the type is the promise under test
			if !ok {
				t.Fatalf("got %v (%T), want *Faults", err, err)
			}
			checkPositions(t, faults, []byte(tt.text))
			compare(t, strings.Split(strings.TrimPrefix(tt.want, "\n"), "\n"), strings.Split(faults.Error(), "\n"))
		})
	}
}

// TestDecodeCluster: a cluster alone is a file too.
func TestDecodeCluster(t *testing.T) {
	var c Cluster
	if err := Decode("c.yaml", []byte("authority: patroni\n"), &c); err != nil {
		t.Fatal(err)
	}
	want := DefaultCluster("main")
	want.Authority = topology.AuthorityPatroni
	compare(t, want, c)
}
