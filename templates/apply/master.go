package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

const (
	masterPoll = 100 * time.Millisecond // between two looks at the processes
	// masterStay is how long a new worker must stay: one that cannot finish its
	// start (a missing chroot) shows up and dies a moment later.
	masterStay = 300 * time.Millisecond
	masterAsk  = 2 * time.Second // one look; the socket is deaf while the master starts anew
	// masterGone is how long nobody may listen in a reload: up to 3.0 nobody does for
	// 2 to 3 s while the master starts anew and a bind fails.
	masterGone = 5 * time.Second
)

// errNotRunning says that nobody listens at the master socket.
var errNotRunning = errors.New("HAProxy's master process does not answer")

// errEnded says that HAProxy ran before a reload and does not any more: some
// versions end on a missing chroot (haproxy #2784) or a port that is taken.
var errEnded = errors.New("HAProxy has ended in the reload")

// errNoEffect says that HAProxy is well and was not reloaded.
var errNoEffect = errors.New("the reload had no effect")

// master speaks to the CLI of HAProxy's master process.
type master struct{ socket string }

func (m master) ask(ctx context.Context, command string) (string, error) {
	answer, err := haproxycli.Socket{Network: "unix", Address: m.socket}.Ask(ctx, command)
	return answer, named(err)
}

func (m master) processes(ctx context.Context) (haproxycli.Processes, error) {
	p, err := haproxycli.Socket{Network: "unix", Address: m.socket, Timeout: masterAsk}.Processes(ctx)
	return p, named(err)
}

// named marks an error that means that no HAProxy runs.
func named(err error) error {
	if _, ok := errors.AsType[*haproxycli.NotListening](err); ok {
		return fmt.Errorf("%w: %w", errNotRunning, err)
	}
	return err
}

// errBusy says that another reload goes on. From 3.1 on a reload is refused
// meanwhile, which says nothing of the files.
var errBusy = errors.New("HAProxy is busy with another reload")

// reloadOnce asks for a reload. Up to 2.6 the answer is empty, later it says
// Success=0 or 1; the connection may also break while the master starts anew.
func (m master) reloadOnce(ctx context.Context) (string, error) {
	answer, err := m.ask(ctx, "reload")
	switch {
	case errors.Is(err, errNotRunning):
		return answer, err
	case !strings.Contains(answer, "Success=0"):
		return answer, nil
	case strings.Contains(answer, "still in progress"):
		return answer, errBusy
	}
	return answer, errors.New("HAProxy says that the reload failed")
}

// reload asks for a reload, again while another one goes on, until the context ends.
func (m master) reload(ctx context.Context) (string, error) {
	again := time.NewTicker(masterPoll)
	defer again.Stop()
	for {
		answer, err := m.reloadOnce(ctx)
		if !errors.Is(err, errBusy) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-again.C:
		}
	}
}

// confirm waits until a worker that was not there before has appeared and
// stayed, until HAProxy counts one more failed reload, or until it is gone.
// With idle it gives up with errNoEffect when the master has answered for that long
// and had no new worker; zero: not before the context ends.
func (m master) confirm(ctx context.Context, before haproxycli.Processes, idle time.Duration) error {
	var fresh int
	var stayed, gone, none time.Duration
	unseen := "" // why the last look saw nothing
	look := time.NewTicker(masterPoll)
	defer look.Stop()
	for {
		now, err := m.processes(ctx)
		switch {
		case errors.Is(err, errNotRunning):
			fresh, none = 0, 0
			if gone += masterPoll; gone >= masterGone {
				return errEnded
			}
		case err != nil: // deaf: it may be loading
			fresh, none, unseen = 0, 0, ": "+err.Error()
		case now.Failed > before.Failed:
			return fmt.Errorf("HAProxy counts %d failed reloads; the old worker goes on", now.Failed)
		case fresh != 0 && now.Workers[fresh]:
			if stayed += masterPoll; stayed >= masterStay {
				return nil
			}
		default:
			fresh, stayed, gone, unseen = appeared(before, now), 0, 0, ""
			if none += masterPoll; fresh == 0 && idle > 0 && none >= idle {
				return errNoEffect
			}
		}
		select {
		case <-ctx.Done():
			if gone > 0 {
				return errEnded
			}
			return errors.New("no new worker has appeared and stayed, so the reload is not confirmed" + unseen)
		case <-look.C:
		}
	}
}

func appeared(before, now haproxycli.Processes) int {
	for pid := range now.Workers {
		if !before.Has(pid) {
			return pid
		}
	}
	return 0
}
