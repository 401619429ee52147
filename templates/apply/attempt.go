package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

// endedPause is how long texts are left alone on which HAProxy ended: each try may
// take the service away for seconds. Retry, and other texts, do not wait for it.
const endedPause = 10 * time.Minute

// rejection is word that texts must not be used.
type rejection struct {
	reason string // of Status.Refused
	err    error
}

func (r *rejection) Error() string {
	if r.reason == RefusedPreflight {
		return "the check passed, but a reload would fail (not if HAProxy runs in another container: then set preflight: false): " + r.err.Error()
	}
	return "the check refused the files: " + r.err.Error()
}
func (r *rejection) Unwrap() error { return r.err }

// apply tries once to make the desired texts live.
func (w *worker) apply(ctx context.Context) {
	output, err := w.attempt(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // broken off before anything was changed
	}
	w.look()
	var rejected *rejection
	reason := ""
	switch {
	case errors.Is(err, errReloadLater):
		w.nextTry = w.reloadDue()
		return
	case err == nil:
		w.settled()
		return
	case errors.As(err, &rejected):
		if !w.rejected { // a text counts once, however often it is refused
			w.rejected, reason = true, rejected.reason
		}
	default:
		w.rejected = false
	}
	pause := w.backOff.NextBackOff()
	if errors.Is(err, errEnded) {
		pause = endedPause
	}
	w.fault, w.nextTry = err.Error(), w.now().Mono.Add(pause)
	w.refuse(reason, w.fault, output)
}

// settled records that the desired texts run.
func (w *worker) settled() {
	w.runningIs, w.good = w.desiredIs, w.desired
	w.fault, w.nextTry, w.rejected, w.binds = "", 0, false, nil
	w.backOff.Reset()
	if w.diskIs != w.desiredIs { // somebody else writes there too: no race at full speed
		w.nextTry = w.now().Mono.Add(waitRecheck)
	}
	w.applied()
	w.saveGood()
}

// applied moves the generations of all clusters that were rendered.
func (w *worker) applied() {
	all := maps.Clone(w.counts.Applied)
	if all == nil {
		all = map[string]uint64{}
	}
	maps.Copy(all, w.generation)
	w.counts.Applied = all
}

// saveGood keeps a copy of what runs, for the operator and for the case that a
// crash leaves a reload owed. Failing to is no reason to stop.
func (w *worker) saveGood() {
	if err := w.keep(w.good, endGood); err != nil {
		w.log.Warn("the copy of the good files could not be written; it is tried again with the next change", "error", err)
	}
}

// keepRefused keeps a copy of refused texts for the operator.
func (w *worker) keepRefused(texts []Text) {
	if err := w.keep(texts, endRejected); err != nil {
		w.log.Warn("the copy of the refused files could not be written", "error", err)
	}
}

// attempt stages, checks, replaces and reloads.
func (w *worker) attempt(ctx context.Context) (output string, err error) {
	s, err := w.stage(w.desired)
	if err != nil {
		return "", err
	}
	defer s.discard()
	if output, err := w.check(ctx, s); err != nil {
		return output, err
	}
	if err := w.owe(); err != nil {
		return "", err
	}
	if err := s.replace(); err != nil {
		return "", err
	}
	return w.makeLive(ctx, s.before)
}

// check runs the check on the staged files, then the preflight, and keeps what either
// refused.
func (w *worker) check(ctx context.Context, s *staging) (string, error) {
	output, err := s.check(ctx, w.runner)
	if err == nil {
		err = w.preflight(s)
	}
	var rejected *rejection
	if errors.As(err, &rejected) && !w.rejected { // else the copy is there
		w.keepRefused(s.texts)
	}
	return output, err
}

// makeLive reloads and confirms. If that fails the last good files return.
func (w *worker) makeLive(ctx context.Context, before []Text) (string, error) {
	if w.brought(ctx) {
		w.paid()
		return "", nil
	}
	if w.now().Mono < w.reloadDue() {
		return "", errReloadLater
	}
	output, err := w.reload(ctx)
	if err == nil {
		w.paid()
		return output, nil
	}
	w.counts.ReloadsFailed++
	w.runningIs = "" // a reload that timed out may have worked
	w.mayHave(w.desired)
	err = fmt.Errorf("reload: %w", err)
	if w.Settings.Roles {
		return output, err // earlier files name a node that is the writer no more
	}
	if errors.Is(err, errNotRunning) && w.failedIs != w.desiredIs {
		return output, err // nobody runs on the earlier files; the checked ones are for the next start
	}
	w.failedIs = w.desiredIs // not for the next start of a HAProxy that may have ended on them
	if w.good != nil {
		before = w.good
	}
	if hashOf(before) == w.desiredIs || !isWhole(before) {
		return output, err
	}
	w.keepRefused(w.desired)
	if back := w.put(before); back != nil {
		return output, errors.Join(err, back)
	}
	return output, fmt.Errorf("%w; the last good files are back on disk", err)
}

// isWhole reports whether every file of a group existed.
func isWhole(texts []Text) bool {
	for _, t := range texts {
		if t.Bytes == nil {
			return false
		}
	}
	return true
}

// reload runs to its end even if the agent is stopped meanwhile: a reload that
// was broken off would leave everybody in doubt.
func (w *worker) reload(ctx context.Context) (output string, err error) {
	if len(w.Reload) == 0 && w.Unit == "" && w.MasterSocket == "" && w.PgBouncer == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.Timeout)
	defer cancel()
	w.reloadedAt = w.now().Mono
	m := master{socket: w.MasterSocket}
	var before haproxycli.Processes
	if w.MasterSocket != "" {
		if before, err = m.processes(ctx); err != nil {
			return "", err
		}
	}
	admin, process, seen := w.running(ctx)
	switch {
	case w.PgBouncer != "":
		err = w.turnPgBouncer(ctx)
	case len(w.Reload) > 0:
		output, err = w.runReload(ctx)
	case w.Unit != "":
		err = unit{w.Unit, w.bus}.reload(ctx)
	default:
		output, err = m.reload(ctx)
	}
	switch {
	case err != nil:
	case w.MasterSocket != "":
		err = w.confirm(ctx, m, before)
		w.countOld(ctx, m)
	case seen:
		err = admin.confirm(ctx, process)
	}
	if err == nil {
		w.counts.Reloads++
	}
	return output, err
}

// confirm confirms a reload. One of systemd's or of a command that did nothing is asked
// of the master itself, once: after a failed reload 3.1 to 3.4 are deaf to the signal
// that both send (haproxy #3229), and no later change would ever run.
func (w *worker) confirm(ctx context.Context, m master, before haproxycli.Processes) error {
	if w.Unit == "" && len(w.Reload) == 0 {
		return m.confirm(ctx, before, 0)
	}
	err := m.confirm(ctx, before, w.Timeout/4)
	if !errors.Is(err, errNoEffect) {
		return err
	}
	w.log.Warn("the reload was not effective: no new worker of HAProxy appeared; its master is asked", "reload", cmp.Or(w.Unit, strings.Join(w.Reload, " ")))
	if _, err := m.reloadOnce(ctx); err != nil && !errors.Is(err, errBusy) { // busy: it was slow
		return fmt.Errorf("%w, and asked itself: %w", errNoEffect, err)
	}
	return m.confirm(ctx, before, 0)
}

func (w *worker) runReload(ctx context.Context) (string, error) {
	args, err := w.places(nil).expand(w.Reload)
	if err != nil {
		return "", err
	}
	output, err := w.runner.Run(ctx, args)
	if err != nil {
		return output, fmt.Errorf("%s: %w", args[0], err)
	}
	return output, nil
}

func (w *worker) countOld(ctx context.Context, m master) {
	if p, err := m.processes(ctx); err == nil {
		w.counts.OldProcesses = len(p.Old)
	}
}

// owe leaves a mark that outlives a crash between the replacement of the files
// and the confirmed reload; without it the next start would find the files as
// desired and never reload.
func (w *worker) owe() error {
	w.owed = true
	if err := put(w.mark(), []byte("a reload is owed for "+w.Files[0].Destination+"\n"), 0o640); err != nil {
		return fmt.Errorf("noting that a reload is owed, nothing was changed: %w", err)
	}
	return nil
}

func (w *worker) mark() string { return beside(w.Files[0].Destination, endPending) }

func (w *worker) isOwed() bool {
	_, err := os.Lstat(w.mark())
	return !errors.Is(err, fs.ErrNotExist)
}

// paid removes the mark. A mark that stays costs one more reload at the next
// start, so it is worth a word but no retry.
func (w *worker) paid() {
	w.owed = false
	if err := os.Remove(w.mark()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("the mark of an owed reload stays; the next start reloads once more", "error", err)
	}
}
