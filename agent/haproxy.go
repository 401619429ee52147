package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/runtimeapi"
	"github.com/pgsteer/pgsteer/agent/status"
)

// haproxyOptions are the sockets of a configuration: those that are listed, and
// the master sockets over which templates reload.
func haproxyOptions(cfg *config.Config) runtimeapi.Options {
	o := runtimeapi.Options{
		Sockets: cfg.HAProxy.Sockets, Masters: slices.Clone(cfg.HAProxy.MasterSockets), Timeout: cfg.HAProxy.Timeout,
		Ready: bool(adminWords(cfg)),
	}
	for _, t := range cfg.Templates {
		if t.MasterSocket != "" && !slices.Contains(o.Masters, t.MasterSocket) {
			o.Masters = append(o.Masters, t.MasterSocket)
		}
	}
	return o
}

func (a *Agent) buildRuntime(o runtimeapi.Options) (*part, error) {
	o.Views, o.Now, o.Logger = &a.views, a.now, a.log.With("component", partRuntime)
	push, err := runtimeapi.New(o)
	if err != nil {
		return nil, err
	}
	run := func(ctx context.Context) error {
		defer a.haproxy.CompareAndSwap(push, nil)
		return push.Run(ctx)
	}
	return &part{begin: func() { a.haproxy.Store(push) }, run: run, status: func() []status.Sink {
		var out []status.Sink
		for _, s := range push.Status() {
			sink := status.Sink{
				Name: partRuntime + " " + s.Socket, State: status.SinkOK, Since: s.Since, Counters: map[string]uint64{"pushes": s.Pushes},
				Gauges: sessionGauges(s.Sessions),
			}
			if s.Err != nil {
				sink.State, sink.Error = status.SinkFailing, s.Err.Error()
			}
			out = append(out, sink)
		}
		for _, m := range push.Masters() {
			out = append(out, workersStatus(m))
		}
		return out
	}}, nil
}

// bringHAProxy changes the servers of the running HAProxy, see runtimeapi.
func (a *Agent) bringHAProxy(ctx context.Context, before, after []byte) error {
	push := a.haproxy.Load()
	if push == nil {
		return errors.New("no HAProxy is told at runtime at this moment")
	}
	return push.Bring(ctx, before, after)
}

// workersStatus is how the old workers of a master process fare.
func workersStatus(m runtimeapi.MasterStatus) status.Sink {
	sink := status.Sink{
		Name: partRuntime + " old workers of " + m.Socket, State: status.SinkOK, Since: m.Since,
		Counters: map[string]uint64{"sessions_ended": m.Ended},
		Gauges:   sessionGauges(m.Sessions),
	}
	sink.Gauges["old_workers"] = uint64(m.Old)
	if m.Err != nil {
		sink.State, sink.Error = status.SinkFailing, m.Err.Error()
	}
	return sink
}

func sessionGauges(s runtimeapi.Sessions) map[string]uint64 {
	return map[string]uint64{"sessions_down": uint64(s.Down), "sessions_draining": uint64(s.Draining)}
}
