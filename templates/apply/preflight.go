package apply

import (
	"errors"
	"os"
	"slices"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/preflight"
)

// preflight tries what a reload of HAProxy would need for the staged texts and does not
// have yet. A refusal is a rejection, as one of the check. Files that are not there yet
// are put in place untried: no HAProxy can have started with them, one that runs by other
// files may hold the ports and be replaced with just these, and one that is to be
// started may make the folders itself.
func (w *worker) preflight(s *staging) error {
	if !w.Preflight || !isWhole(s.before) {
		return nil
	}
	had := slices.Concat(w.bindsOf(s.before), w.bindsOf(w.kept(endGood)), w.binds)
	if faults := preflight.Faults(w.lines(s.texts), had); len(faults) > 0 {
		return &rejection{RefusedPreflight, errors.Join(faults...)}
	}
	return nil
}

// mayHave remembers the binds of texts that may run although no reload confirmed them:
// a HAProxy that has them would be in its own way.
func (w *worker) mayHave(texts []Text) {
	if !w.Preflight {
		return
	}
	for _, b := range w.bindsOf(texts) {
		if !slices.ContainsFunc(w.binds, func(o haproxycfg.Bind) bool { return o.Same(b) }) {
			w.binds = append(w.binds, b)
		}
	}
}

func (w *worker) bindsOf(texts []Text) []haproxycfg.Bind { return haproxycfg.Binds(w.lines(texts)) }

// lines are those of HAProxy's whole configuration with these texts in it: the files of
// the check command in their order. Files that cannot be read say nothing.
func (w *worker) lines(texts []Text) (all []haproxycfg.Line) {
	in := places{destinations: make([]string, len(texts))}
	for i, t := range texts {
		in.destinations[i] = t.Destination
	}
	in.staged = in.destinations // a staged text is shown by its final place
	command, err := in.expand(w.Check)
	if err != nil {
		return nil // there are no texts
	}
	files := preflight.Files(command)
	for _, t := range texts {
		if !slices.Contains(files, t.Destination) {
			files = append(files, t.Destination)
		}
	}
	for _, file := range files {
		if i := slices.Index(in.destinations, file); i >= 0 {
			all = append(all, haproxycfg.Lines(file, texts[i].Bytes)...)
		} else if b, err := os.ReadFile(file); err == nil {
			all = append(all, haproxycfg.Lines(file, b)...)
		}
	}
	return all
}
