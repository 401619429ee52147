package consul

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// How long reads wait for company. A read that is not urgent waits for the next
// departure, so that it can still be called forward; those that leave together
// come back together and stay so.
const (
	departEvery = time.Second
	gatherFor   = 5 * time.Millisecond
)

// departure returns a channel that is closed when the reads that wait for company
// go, at most departEvery from now.
func (f *fleet) departure() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.departs == nil {
		f.departs = make(chan struct{})
		time.AfterFunc(departEvery, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			close(f.departs)
			f.departs = nil
		})
	}
	return f.departs
}

// lane is what reads must have in common to share a transaction.
type lane struct {
	mode  Consistency
	apart bool // of those that were hidden a moment ago
}

// batch is reads that share a transaction. It lives until it is answered or
// nobody waits for it any more.
type batch struct {
	lane   lane
	cancel context.CancelFunc
	full   chan struct{} // closed when no more reads are taken
	done   chan struct{} // closed when the reads are answered

	reads   []*treeRead // guarded by fleet.mu until the batch is shut
	waiting int         // guarded by fleet.mu
}

// treeRead is the read of one prefix and what came of it.
type treeRead struct {
	prefix string
	pairs  api.KVPairs
	meta   *api.QueryMeta
	err    error
}

// share reads a prefix together with others of the same lane.
func (f *fleet) share(ctx context.Context, l lane, prefix string) (api.KVPairs, *api.QueryMeta, error) {
	r := &treeRead{prefix: prefix}
	b := f.board(ctx, l, r)
	defer f.alight(b)
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-b.done:
		return r.pairs, r.meta, r.err
	}
}

// board adds a read to the batch that takes some, or to a new one.
func (f *fleet) board(ctx context.Context, l lane, r *treeRead) *batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.open[l]
	if b == nil {
		// One who boards may leave before the others, so the context of none counts.
		all, cancel := context.WithCancel(context.WithoutCancel(ctx))
		b = &batch{lane: l, cancel: cancel, full: make(chan struct{}), done: make(chan struct{})}
		f.open[l] = b
		go func() {
			defer close(b.done)
			f.drive(all, b)
		}()
	}
	b.reads = append(b.reads, r)
	b.waiting++
	if len(b.reads) == maxTrees {
		f.shut(b)
	}
	return b
}

// shut lets nobody board any more. It needs f.mu.
func (f *fleet) shut(b *batch) {
	if f.open[b.lane] == b {
		delete(f.open, b.lane)
		close(b.full)
	}
}

// alight counts one out who has the answer or wants it no more; the last one
// ends the batch and leaves nothing of it behind.
func (f *fleet) alight(b *batch) {
	f.mu.Lock()
	b.waiting--
	last := b.waiting == 0
	if last {
		f.shut(b)
	}
	f.mu.Unlock()
	if last {
		b.cancel()
		<-b.done
	}
}

// drive waits for company and for its turn, then asks.
func (f *fleet) drive(ctx context.Context, b *batch) {
	t := time.NewTimer(gatherFor)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-b.full:
	case <-t.C:
	}
	err := f.bucket.Wait(ctx) // whoever comes meanwhile is still taken along
	f.mu.Lock()
	f.shut(b)
	reads := b.reads
	f.mu.Unlock()
	if err != nil { // nobody waits any more
		return
	}
	f.answer(ctx, b.lane.mode, reads)
}

// answer asks for all reads at once. When keys were left out, nobody knows whose,
// so nothing of the answer is taken for the truth: those without any key are set
// apart, and the others ask again without them.
func (f *fleet) answer(ctx context.Context, mode Consistency, reads []*treeRead) {
	hidden := f.ask(ctx, mode, reads)
	f.setApart(true, prefixes(hidden)...)
	rest := slices.DeleteFunc(slices.Clone(reads), func(r *treeRead) bool { return slices.Contains(hidden, r) })
	if len(hidden) == 0 || len(rest) == 0 || f.bucket.Wait(ctx) != nil {
		return
	}
	if hidden = f.ask(ctx, mode, rest); len(hidden) == 0 {
		return
	}
	for _, r := range rest { // not only whole scopes are hidden
		r.err = errFiltered
	}
	f.setApart(true, prefixes(rest)...)
}

// ask puts one transaction and hands out what it found. If keys were left out,
// every read gets errFiltered, and those without any key, else all, are returned.
func (f *fleet) ask(ctx context.Context, mode Consistency, reads []*treeRead) (hidden []*treeRead) {
	pairs, meta, err := f.c.trees(ctx, mode, prefixes(reads))
	slices.SortFunc(pairs, func(a, b *api.KVPair) int { return strings.Compare(a.Key, b.Key) })
	pairs = slices.CompactFunc(pairs, func(a, b *api.KVPair) bool { return a.Key == b.Key })
	filtered := err == nil && meta.ResultsFilteredByACLs
	for _, r := range reads {
		r.pairs, r.meta, r.err = below(pairs, r.prefix), meta, err
		if !filtered {
			continue
		}
		if r.err = errFiltered; len(r.pairs) == 0 {
			hidden = append(hidden, r)
		}
	}
	switch {
	case err != nil:
	case !filtered:
		f.setApart(false, prefixes(reads)...)
	case len(hidden) == 0:
		return reads
	}
	return hidden
}

func prefixes(reads []*treeRead) []string {
	out := make([]string, len(reads))
	for i, r := range reads {
		out[i] = r.prefix
	}
	return out
}

// below returns those of the sorted pairs whose keys begin with a prefix.
func below(pairs api.KVPairs, prefix string) api.KVPairs {
	begin, _ := slices.BinarySearchFunc(pairs, prefix, func(p *api.KVPair, s string) int { return strings.Compare(p.Key, s) })
	end := begin
	for end < len(pairs) && strings.HasPrefix(pairs[end].Key, prefix) {
		end++
	}
	return pairs[begin:end:end]
}
