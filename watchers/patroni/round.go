package patroni

import (
	"context"
	"slices"
	"sync"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// inParallel is how many questions of one round are under way at once.
const inParallel = 8

// round asks the members once around. It is owned by one goroutine; only the
// questions themselves run beside it.
type round struct {
	p     *poll
	began topology.Clock
	asked map[*endpoint]bool // for the word
	// What they answered, in the order in which they are to be heard.
	words  map[*endpoint]word
	views  map[*endpoint]view
	looked map[*endpoint]bool // asked for the list
	faults []string
}

func (p *poll) begin() *round {
	return &round{
		p: p, began: p.w.o.Now(), asked: map[*endpoint]bool{}, looked: map[*endpoint]bool{},
		words: map[*endpoint]word{}, views: map[*endpoint]view{},
	}
}

// run asks, and judges what came back. sure wants a list of the present leader
// even if one was read a moment ago.
func (r *round) run(ctx context.Context, sure bool) verdict {
	r.askWords(ctx, r.p.dir.due(r.began.Mono, r.p.open > 0))
	first := r.answered()
	if h := r.holder(); h != nil {
		pic := &r.p.pic
		due := sure || h.member != pic.leader || pic.viewDue(r.began.Mono, r.p.w.o.ListEvery)
		switch {
		case !due:
			first = nil
		case slices.Contains(first, h): // its own list is the best
			first = []*endpoint{h}
		}
	}
	r.askViews(ctx, first)
	v := r.judge(ctx)
	if v.conclusion != named || len(first) > 0 && r.agreeing(v) == nil {
		r.askViews(ctx, r.answered())
		v = r.judge(ctx)
	}
	return v
}

// judge learns the members of the lists, asks those that were not asked yet and
// should be, and weighs everything.
func (r *round) judge(ctx context.Context) verdict {
	for _, v := range r.ordered() {
		r.faults = append(r.faults, r.p.dir.learn(v.members)...)
	}
	var more []*endpoint
	for _, e := range r.p.dir.all {
		fresh := e.learned && e.word.over(r.began.Mono)
		// One that is named is asked even if it was refusing a moment ago, but not
		// if each question occupies a thread of it.
		if !r.asked[e] && (fresh || !e.word.hung() && r.isNamed(e)) {
			more = append(more, e)
		}
	}
	r.askWords(ctx, more)
	return judge(r.evidence())
}

func (r *round) isNamed(e *endpoint) bool {
	for _, v := range r.views {
		if v.leader != "" && v.leader == e.member {
			return e.learned
		}
	}
	return false
}

// holder is an endpoint whose member says that it holds the key, nil if there is
// none. What it says may be blind, and it may not be the only one.
func (r *round) holder() *endpoint {
	var found *endpoint
	for _, e := range r.p.dir.all {
		if w := r.words[e]; w.holds && (found == nil || e.learned) {
			found = e
		}
	}
	return found
}

// answered lists who gave a word and was not asked for the list yet.
func (r *round) answered() []*endpoint {
	var out []*endpoint
	for _, e := range r.p.dir.all {
		if _, ok := r.words[e]; ok && !r.looked[e] && e.list.over(r.began.Mono) {
			out = append(out, e)
		}
	}
	return out
}

// ordered are the lists of this round, those of members' own addresses first.
func (r *round) ordered() []view {
	var own, others []view
	for _, e := range r.p.dir.all {
		v, ok := r.views[e]
		switch {
		case ok && e.learned:
			own = append(own, v)
		case ok:
			others = append(others, v)
		}
	}
	return append(own, others...)
}

// evidence puts together what was said by member. Where a member was asked at
// two places, its own address counts.
func (r *round) evidence() evidence {
	e := evidence{words: map[string]word{}, views: map[string]view{}}
	e.known = append(e.known, r.p.dir.members...)
	for _, own := range []bool{false, true} {
		for _, at := range r.p.dir.all {
			if at.learned != own {
				continue
			}
			r.hear(&e, at)
		}
	}
	for _, v := range r.views {
		for _, m := range v.members {
			e.known = append(e.known, m.Name)
		}
	}
	slices.Sort(e.known)
	e.known = slices.Compact(e.known)
	return e
}

func (r *round) hear(e *evidence, at *endpoint) {
	w, answered := r.words[at]
	if answered && at.votes() {
		e.words[at.member] = w
		if v, ok := r.views[at]; ok {
			e.views[at.member] = v
		}
	}
	t := at.word.trouble // perhaps of before, if it is being left alone
	switch {
	case answered && !at.votes():
		t = contentTrouble(errStranger)
	case answered:
		t = at.list.trouble
	}
	if t != nil {
		e.complaints = append(e.complaints, complaint{at.String(), t})
	}
}

// agreeing returns the lists that do not speak against the verdict, the leader's
// own first; nil when there is none.
func (r *round) agreeing(v verdict) []view {
	e := r.evidence()
	var out []view
	if own, ok := e.views[v.leader]; ok && !own.contradicts(v.leader) {
		out = append(out, own)
	}
	for _, name := range e.known {
		if o, ok := e.views[name]; ok && name != v.leader && o.leader == v.leader {
			out = append(out, o)
		}
	}
	return out
}

func (r *round) askWords(ctx context.Context, whom []*endpoint) {
	for i, a := range r.ask(ctx, whom, pathWord) {
		e := whom[i]
		r.asked[e] = true
		w, t := word{}, a.trouble
		if t == nil {
			w, t = parseWord(a.reply, r.p.w.o.Scope)
		}
		if t == nil {
			t = e.identify(w.name)
		}
		if r.note(&e.word, t); t == nil {
			r.words[e] = w
		}
	}
}

func (r *round) askViews(ctx context.Context, whom []*endpoint) {
	for i, a := range r.ask(ctx, whom, pathView) {
		e := whom[i]
		r.looked[e] = true
		v, t := view{}, a.trouble
		if t != nil && t.class == topology.FailReset {
			t = &trouble{class: topology.FailStore, err: errNoStore}
		}
		if t == nil {
			v, t = parseView(a.reply, r.p.w.o.Scope)
		}
		if r.note(&e.list, t); t == nil {
			r.views[e] = v
			r.faults = append(r.faults, v.faults...)
		}
	}
}

func (r *round) note(s *standing, t *trouble) {
	if t != nil {
		r.p.w.count(func(s *Stats) { s.Failures++ })
	}
	s.note(r.p.w.o.Now().Mono, t, r.p.w.jitter)
}

// outcome of one question.
type outcome struct {
	reply
	*trouble
}

// ask puts one question to several endpoints, a few at a time, each with its own
// deadline. One that hung the last time has half of the time, since the others'
// words wait for it. The answers are in the order of whom.
func (r *round) ask(ctx context.Context, whom []*endpoint, path string) []outcome {
	out := make([]outcome, len(whom))
	free := make(chan struct{}, inParallel)
	var all sync.WaitGroup
	for i, e := range whom {
		q := question{url: e.base + path, limit: r.p.w.o.Timeout}
		if e.word.hung() {
			q.limit /= 2
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			out[i].reply, out[i].trouble = r.p.w.client.get(ctx, q)
		})
	}
	all.Wait()
	r.p.w.count(func(s *Stats) { s.Requests += uint64(len(whom)) })
	return out
}
