package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pgsteer/pgsteer/agent/status"
)

// stopPatience is how long a part may take to stop before the agent goes on
// without it.
const stopPatience = 5 * time.Second

// part is one thing that runs: a cluster, a listener with its server, a sink.
// It is built (all that can fail), then started, then stopped.
type part struct {
	name    string
	listen  net.Listener                // nil for a part that listens nowhere
	address string                      // where, as configured
	begin   func()                      // nil, or what must happen right before the start
	run     func(context.Context) error // returns nil when the context ends, else it is a fault
	status  func() []status.Sink        // nil, or how the part fares

	cancel context.CancelFunc
	done   chan struct{}
}

// start runs the part; failed takes the error of a part that ended by itself.
func (p *part) start(ctx context.Context, failed chan<- error) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.done = make(chan struct{})
	if p.begin != nil {
		p.begin()
	}
	go func() {
		defer close(p.done)
		err := p.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended without being asked to")
		}
		select {
		case failed <- fmt.Errorf("%s: %w", p.name, err):
		default: // one fault is enough to end the agent
		}
	}()
}

// stop ends the part and waits for it.
func (p *part) stop() error {
	if p.cancel == nil {
		p.close()
		return nil
	}
	p.cancel()
	select {
	case <-p.done:
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("%s did not stop within %s", p.name, stopPatience)
	}
}

// close frees what was built but never started.
func (p *part) close() {
	if p.listen != nil {
		_ = p.listen.Close()
	}
}

// listen opens an address, or takes over the socket of the part that listens
// there already, so that a reload closes no port even for a moment.
func listen(name, address string, before *part) (net.Listener, error) {
	if before != nil && before.listen != nil && before.address == address {
		if tcp, ok := before.listen.(*net.TCPListener); ok {
			f, err := tcp.File()
			if err != nil {
				return nil, fmt.Errorf("take over %s for %s: %w", address, name, err)
			}
			defer func() { _ = f.Close() }()
			l, err := net.FileListener(f)
			if err != nil {
				return nil, fmt.Errorf("take over %s for %s: %w", address, name, err)
			}
			return l, nil
		}
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s cannot listen on %s: %w", name, address, err)
	}
	return l, nil
}
