package engine

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// post is the way from the sources to the engine: what a source has seen
// arrives late, twice, out of turn or never. The list of nodes in the
// configuration and the agent's word on itself arrive at once.
type post struct {
	late  map[topology.SourceID]time.Duration // how long an observation is on its way
	lose  map[topology.SourceID]int           // how many of the next are lost
	again time.Duration                       // each arrives again so much later; zero: it does not
	// stamps: probers count when an answer is there, not when they asked.
	stamps bool
	// backwards: what several sources have sent at once arrives the other way round.
	backwards bool
	bag       []parcel // by arrival
}

type parcel struct {
	at topology.Mono
	o  topology.Observation
}

func newPost() *post {
	return &post{late: make(map[topology.SourceID]time.Duration), lose: make(map[topology.SourceID]int)}
}

// takes reports whether the post carries an observation that was made now.
func (p *post) takes(o topology.Observation) bool {
	if p == nil || o.Source == fileSource || o.Source == localSource {
		return false
	}
	if p.lose[o.Source] > 0 {
		p.lose[o.Source]--
		return true
	}
	late := p.late[o.Source]
	if late == 0 && p.again == 0 {
		return false
	}
	p.put(parcel{at: o.At.Mono.Add(late), o: o})
	if p.again > 0 && !p.stamps {
		p.put(parcel{at: o.At.Mono.Add(late + p.again), o: o})
	}
	return true
}

func (p *post) put(n parcel) {
	i, _ := slices.BinarySearchFunc(p.bag, n.at+1, func(a parcel, at topology.Mono) int { return cmp.Compare(a.at, at) })
	p.bag = slices.Insert(p.bag, i, n)
}

// due returns when the next parcel arrives.
func (p *post) due() topology.Mono {
	if p == nil || len(p.bag) == 0 {
		return math.MaxInt64
	}
	return p.bag[0].at
}

// deliver hands over what has arrived by now.
func (p *post) deliver(w *world) {
	if p == nil {
		return
	}
	n := 0
	for n < len(p.bag) && p.bag[n].at <= w.now.Mono {
		n++
	}
	arrived := slices.Clone(p.bag[:n])
	p.bag = p.bag[n:]
	if p.backwards {
		slices.SortStableFunc(arrived, func(a, b parcel) int { return cmp.Compare(b.o.Source.String(), a.o.Source.String()) })
	}
	for _, a := range arrived {
		if a.o.At = w.now; p.stamps && a.o.Source.Kind == topology.SourcePostgres {
			w.seq[a.o.Source]++
			a.o.Seq = w.seq[a.o.Source]
		}
		w.receive(a.o)
	}
}
