package patroni

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// evidence is what one round brought.
type evidence struct {
	known      []string        // every member that was ever listed and not left out since
	words      map[string]word // what members say of themselves
	views      map[string]view // what members' lists say
	complaints []complaint
}

// conclusion is what a round proves.
type conclusion uint8

const (
	unproven conclusion = iota
	named
	absent // needs the same again
)

// verdict is the conclusion of a round.
type verdict struct {
	conclusion
	leader string
	// agrees is what the leader's own word adds: Yes, or its denial, or nothing.
	agrees topology.Tri
	why    string // there is no proof
}

// judge weighs the evidence. It is pure.
func judge(e evidence) verdict {
	claims, majority := e.claims(), e.majority()
	switch {
	case len(claims) == 0 && majority != "":
		return verdict{conclusion: named, leader: majority, agrees: e.agrees(majority)}
	case len(claims) == 0:
		return e.nobody()
	case slices.Contains(claims, majority):
		return verdict{conclusion: named, leader: majority, agrees: topology.Yes}
	case len(claims) > 1:
		return verdict{why: strings.Join(claims, " and ") + " each say that they hold the leader key, and no majority of lists decides"}
	case majority != "":
		return verdict{why: fmt.Sprintf("%s says that it holds the leader key, and most lists name %s", claims[0], majority)}
	}
	claim := claims[0]
	if own, asked := e.views[claim]; asked && own.contradicts(claim) {
		return verdict{why: claim + " says that it holds the leader key, and its own list says otherwise"}
	}
	return verdict{conclusion: named, leader: claim, agrees: topology.Yes}
}

// claims are the members that say they hold the key and have the store in
// sight, by name. One that is blind has it in sight once its own list, which
// takes a read of the store, names it.
func (e evidence) claims() []string {
	var out []string
	for name, w := range e.words {
		own, asked := e.views[name]
		if w.holds && (!w.blind || asked && own.leader == name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// majority is whom the lists of more than half of all members name.
func (e evidence) majority() string {
	votes := make(map[string]int)
	for _, v := range e.views {
		if v.leader != "" {
			votes[v.leader]++
		}
	}
	for name, n := range votes {
		if e.most(n) {
			return name
		}
	}
	return ""
}

func (e evidence) most(n int) bool { return 2*n > len(e.known) }

// agrees is what a member that the majority names says itself.
func (e evidence) agrees(leader string) topology.Tri {
	if w, ok := e.words[leader]; ok && !w.holds {
		return topology.No
	}
	return topology.Unknown
}

// nobody finds out whether the key is absent. One member's list is no proof,
// not even in a cluster of one: it may be old.
func (e evidence) nobody() verdict {
	var naming []string
	for _, viewer := range slices.Sorted(maps.Keys(e.views)) {
		if l := e.views[viewer].leader; l != "" {
			naming = append(naming, viewer+"'s list names "+l)
		}
	}
	none := len(e.views) - len(naming)
	switch {
	case len(naming) > 0:
		return verdict{why: "nobody says that it holds the leader key, and " + strings.Join(naming, ", ")}
	case none > 1 && e.most(none):
		return verdict{conclusion: absent}
	case none > 0:
		return verdict{why: fmt.Sprintf("the lists of %d of %d members show no leader, too few to tell that there is none", none, len(e.known))}
	}
	return verdict{why: e.sightless()}
}

// sightless words a round in which no member's list could be had.
func (e evidence) sightless() string {
	var blind []string
	for _, name := range slices.Sorted(maps.Keys(e.words)) {
		if w := e.words[name]; w.holds && w.blind {
			blind = append(blind, name)
		}
	}
	switch {
	case len(blind) > 0:
		return strings.Join(blind, " and ") + " would go on as the leader, but without its store in sight"
	case len(e.words) > 0:
		return "nobody says that it holds the leader key, and no list could be read"
	}
	return ""
}
