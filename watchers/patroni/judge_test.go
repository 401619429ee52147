package patroni

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// said is a member's part of the evidence, in letters: H holds, B holds but is
// blind, D denies, a dot is silent; after a colon whom its list names, a dot for
// nobody; nothing for no list. An own entry is in each list.
func gather(said map[string]string) evidence {
	e := evidence{words: map[string]word{}, views: map[string]view{}}
	for name, s := range said {
		e.known = append(e.known, name)
		switch s[0] {
		case 'H':
			e.words[name] = word{holds: true}
		case 'B':
			e.words[name] = word{holds: true, blind: true}
		case 'D':
			e.words[name] = word{}
		}
		if len(s) < 3 {
			continue
		}
		v := view{members: []topology.Member{{Name: name}}}
		if s[2] != '.' {
			v.leader = s[2:]
		}
		e.views[name] = v
	}
	return e
}

type says = map[string]string

var judgements = []struct {
	name string
	said says
	want verdict // why is any text when there is one
}{
	{"the leader's own word", says{"a": "H", "b": "D", "c": "D"}, verdict{named, "a", topology.Yes, ""}},
	{"the leader's own word and list", says{"a": "H:a", "b": "D", "c": "."}, verdict{named, "a", topology.Yes, ""}},
	{"alone in a cluster of one", says{"a": "H:a"}, verdict{named, "a", topology.Yes, ""}},
	{"its own word against one old list", says{"a": "H:a", "b": "D:b", "c": "D"}, verdict{named, "a", topology.Yes, ""}},
	{"its own list speaks against it", says{"a": "H:.", "b": "D", "c": "D"}, verdict{why: "x"}},
	{"its own list names another", says{"a": "H:b", "b": "D", "c": "D"}, verdict{why: "x"}},
	{"most lists, though its own is old", says{"a": "H:.", "b": "D:a", "c": "D:a"}, verdict{named, "a", topology.Yes, ""}},
	{"most lists name another than who says so", says{"a": "H", "b": "D:b", "c": "D:b"}, verdict{why: "x"}},
	{"two say so", says{"a": "H", "b": "H", "c": "D"}, verdict{why: "x"}},
	{"two say so, each with its list", says{"a": "H:a", "b": "H:b", "c": "D"}, verdict{why: "x"}},
	{"two say so and most lists decide", says{"a": "H:b", "b": "H:b", "c": "D"}, verdict{named, "b", topology.Yes, ""}},
	{"two say so and most lists name a third", says{"a": "H:c", "b": "H:c", "c": "D:c"}, verdict{why: "x"}},

	{"blind", says{"a": "B", "b": "D", "c": "D"}, verdict{why: "x"}},
	{"blind, and its own list names it", says{"a": "B:a", "b": "D", "c": "D"}, verdict{named, "a", topology.Yes, ""}},
	{"blind, and its own list is old", says{"a": "B:.", "b": "D", "c": "D"}, verdict{why: "x"}},
	{"blind, and most lists name it", says{"a": "B", "b": "D:a", "c": "D:a"}, verdict{named, "a", topology.Unknown, ""}},
	{"blind in pause, another holds it", says{"a": "B", "b": "H:b", "c": "D"}, verdict{named, "b", topology.Yes, ""}},
	{"two blind", says{"a": "B", "b": "B", "c": "D"}, verdict{why: "x"}},

	{"silent, and most lists name it", says{"a": ".", "b": "D:a", "c": "D:a"}, verdict{named, "a", topology.Unknown, ""}},
	{"it denies, and most lists name it", says{"a": "D:a", "b": "D:a", "c": "."}, verdict{named, "a", topology.No, ""}},
	{"silent, and one list of two names it", says{"a": ".", "b": "D:a"}, verdict{why: "x"}},
	{"silent, and one list of three names it", says{"a": ".", "b": "D:a", "c": "."}, verdict{why: "x"}},
	{"half is not most", says{"a": ".", "b": "D:a", "c": "D:a", "d": "."}, verdict{why: "x"}},
	{"the lists differ", says{"a": ".", "b": "D:a", "c": "D:c"}, verdict{why: "x"}},

	{"no leader", says{"a": "D:.", "b": "D:.", "c": "D:."}, verdict{conclusion: absent}},
	{"no leader, one silent", says{"a": ".", "b": "D:.", "c": "D:."}, verdict{conclusion: absent}},
	{"no leader, and one goes on blindly", says{"a": "B", "b": "D:.", "c": "D:."}, verdict{conclusion: absent}},
	{"one list without leader of three", says{"a": ".", "b": "D:.", "c": "."}, verdict{why: "x"}},
	{"one list without leader of two", says{"a": ".", "b": "D:."}, verdict{why: "x"}},
	{"one list without leader of one", says{"a": "D:."}, verdict{why: "x"}},
	{"most lists without leader, one with", says{"a": "D:.", "b": "D:.", "c": "D:b"}, verdict{why: "x"}},
	{"no list at all", says{"a": "D", "b": "D"}, verdict{why: "x"}},
	{"no lists, and somebody holds it", says{"a": "H", "b": "D:.", "c": "D:."}, verdict{named, "a", topology.Yes, ""}},
	{"silence", says{"a": ".", "b": ".", "c": "."}, verdict{}},
}

func TestJudge(t *testing.T) {
	for _, c := range judgements {
		got := judge(gather(c.said))
		if got.why != "" && c.want.why != "" {
			got.why = c.want.why
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A leader who is named has the key by its own word or by most lists; an absent
// key is never concluded by one member, nor while somebody holds it in sight of
// the store; and nobody is concluded twice.
func TestJudgeNeverGoesBeyondTheEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "members")]
		said := make(map[string]string, len(all))
		for _, n := range all {
			s := rapid.SampledFrom([]string{"H", "B", "D", "."}).Draw(t, "word of "+n)
			if s != "." && rapid.Bool().Draw(t, n+" has a list") {
				s += ":" + rapid.SampledFrom(append([]string{"."}, all...)).Draw(t, "list of "+n)
			}
			said[n] = s
		}
		e := gather(said)
		votes, none, holders := map[string]int{}, 0, 0
		for n, s := range said {
			if len(s) > 1 && s[2:] != "." {
				votes[s[2:]]++
			} else if len(s) > 1 {
				none++
			}
			if s[0] == 'H' || s == "B:"+n {
				holders++
			}
		}
		switch v := judge(e); v.conclusion {
		case named:
			own := said[v.leader][0] == 'H' || said[v.leader] == "B:"+v.leader
			if !own && 2*votes[v.leader] <= len(all) {
				t.Fatalf("%v: names %s, who neither says so nor is named by most", said, v.leader)
			}
			if v.agrees == topology.Yes != own {
				t.Fatalf("%v: agrees is %s", said, v.agrees)
			}
			for other, n := range votes {
				if other != v.leader && 2*n > len(all) {
					t.Fatalf("%v: names %s against most lists", said, v.leader)
				}
			}
		case absent:
			if none < 2 || 2*none <= len(all) || holders > 0 || len(votes) > 0 {
				t.Fatalf("%v: concludes that there is no leader", said)
			}
		case unproven:
			if v.why == "" && len(e.words) > 0 {
				t.Fatalf("%v: no reason", said)
			}
		}
	})
}
