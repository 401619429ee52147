package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

// admin is HAProxy's admin socket. Where there is no master's, the process that answers
// there tells whether a reload has been.
type admin struct{ socket string }

func (a admin) process(ctx context.Context) (haproxycli.Process, error) {
	answer, err := haproxycli.Socket{Network: "unix", Address: a.socket, Timeout: masterAsk}.Ask(ctx, "show info")
	if err != nil {
		return haproxycli.Process{}, err
	}
	p := haproxycli.ParseInfo(answer)
	if p.PID == "" {
		return p, fmt.Errorf("the answer of %s to show info is %.60q", a.socket, answer)
	}
	return p, nil
}

// confirm waits until another process answers and stays.
func (a admin) confirm(ctx context.Context, before haproxycli.Process) error {
	var stayed time.Duration
	unseen := ""
	end, limited := ctx.Deadline()
	look := time.NewTicker(masterPoll)
	defer look.Stop()
	for {
		now, err := a.process(ctx)
		switch {
		case ctx.Err() != nil, limited && !time.Now().Before(end): // which is no answer
		case err != nil:
			stayed, unseen = 0, ": "+err.Error()
		case now.Stopping || !now.Replaces(before):
			stayed, unseen = 0, ": process "+now.PID+" answers"
		case stayed >= masterStay:
			return nil
		default:
			stayed += masterPoll
		}
		select {
		case <-ctx.Done():
			return errors.New("no new process of HAProxy answers at " + a.socket + ", so the reload is not confirmed (with master_socket one that had no effect would be made good)" + unseen)
		case <-look.C:
		}
	}
}

// running is the HAProxy that answers at one of AdminSockets that the group's own files
// bind: no other process has that path.
func (w *worker) running(ctx context.Context) (a admin, p haproxycli.Process, ok bool) {
	if !w.isBlind() {
		return a, p, false
	}
	for _, b := range haproxycfg.Binds(w.lines(w.desired)) {
		if !b.Line.Begins("stats", "socket") || b.Vague || !slices.Contains(w.AdminSockets, b.Path) {
			continue
		}
		a = admin{b.Path}
		if p, err := a.process(ctx); err == nil {
			return a, p, true
		}
	}
	return a, p, false
}

// isBlind reports whether HAProxy is reloaded by others and its master cannot be asked
// what came of it.
func (w *worker) isBlind() bool {
	return w.MasterSocket == "" && (w.Unit != "" || len(w.Reload) > 0) && slices.ContainsFunc(w.Files, func(f File) bool { return f.HAProxy })
}
