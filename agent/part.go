package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/xds"
)

// stopPatience is how long parts may take to stop before the agent goes on
// without them.
const stopPatience = 5 * time.Second

// part is one thing that runs: a cluster, a listener with its server, a sink.
// It is built (all that can fail), then started, then stopped.
type part struct {
	name string
	// made identifies what the part was made of; another value needs another part.
	made   string
	listen net.Listener                // nil for a part that listens nowhere
	bound  string                      // the address of listen, as it was asked for
	begin  func()                      // nil, or what must happen right before the start
	run    func(context.Context) error // returns nil when the context ends, else it is a fault
	status func() []status.Sink        // nil, or how the part fares
	live   func(*config.Config)        // nil, or what takes new settings without a restart
	envoys func() xds.Status           // of the server for Envoys

	cancel context.CancelFunc
	done   chan struct{}
}

// start runs parts. One that ends by itself ends the agent: silence would be worse.
func (a *Agent) start(ctx context.Context, parts map[string]*part) {
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		p := parts[name]
		ctx, cancel := context.WithCancel(ctx)
		p.cancel, p.done = cancel, make(chan struct{})
		if p.begin != nil {
			p.begin()
		}
		go func() {
			defer close(p.done)
			if err := ended(ctx, p.run(ctx)); err != nil {
				select {
				case a.failed <- fmt.Errorf("%s: %w", p.name, err):
				default: // one fault is enough to end the agent
				}
			}
		}()
	}
}

// ended makes a fault of an end that nobody asked for.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = nil
	} else if err == nil {
		err = errors.New("ended without being asked to")
	}
	return err
}

// stop ends parts, all at once, and waits for them.
func stop(parts map[string]*part) error {
	for _, p := range parts {
		p.cancel()
	}
	over := make(chan struct{})
	patience := time.AfterFunc(stopPatience, func() { close(over) })
	defer patience.Stop()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		select {
		case <-parts[name].done:
		case <-over:
			errs = append(errs, fmt.Errorf("%s did not stop within %s", name, stopPatience))
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) stopAll() {
	if err := stop(a.partsNow()); err != nil {
		a.log.Error("left behind at the end", "err", err)
	}
}

func (a *Agent) partsNow() map[string]*part {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.parts)
}

// close frees what was built but never started.
func (p *part) close() {
	if p.listen != nil {
		_ = p.listen.Close()
	}
}

// How long, and how often, an address that is in use is tried.
const (
	bindPatience = 500 * time.Millisecond
	bindEvery    = 20 * time.Millisecond
)

// bind opens a part's listener. One that takes the place of a running part at the
// same address, as with other files of TLS, gets the socket of that: it would be in
// the way, and whoever connects meanwhile is not refused. Another running part may be
// in the way too, as 127.0.0.1 is for every interface.
func (a *Agent) bind(name, address string) (net.Listener, error) {
	if old := a.parts[name]; old != nil && old.listen != nil && old.bound == address {
		return shared(name, old.listen)
	}
	conf := new(net.ListenConfig)
	if strings.HasPrefix(name, partAgentCheck) {
		conf = agentcheck.ListenConfig()
	}
	l, err := conf.Listen(context.Background(), "tcp", address)
	// The kernel may still hold a socket that was closed a moment ago.
	for end := time.Now().Add(bindPatience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		<-time.After(bindEvery)
		l, err = conf.Listen(context.Background(), "tcp", address)
	}
	if err == nil {
		return l, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		for other, p := range a.parts {
			if p.listen != nil && samePort(p.listen.Addr().String(), address) {
				return nil, fmt.Errorf("%s cannot listen on %s: this agent's own %s listens on %s until it is restarted: %w", name, address, other, p.listen.Addr(), err)
			}
		}
	}
	return nil, fmt.Errorf("%s cannot listen on %s%s: %w", name, address, setBy(name), err)
}

// shared is another listener on the socket of one. Each is closed by itself, and the
// socket with the last of them.
func shared(name string, l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%s cannot take over its socket at %s: it is no TCP socket", name, l.Addr())
	}
	f, err := tcp.File()
	if err != nil {
		return nil, fmt.Errorf("%s cannot take over its socket at %s: %w", name, l.Addr(), err)
	}
	defer func() { _ = f.Close() }()
	other, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%s cannot take over its socket at %s: %w", name, l.Addr(), err)
	}
	return other, nil
}

// setBy names the key that has a listener's address, for those called otherwise.
func setBy(name string) string {
	switch name {
	case partAgentCheck:
		return " (listen.agent_check)"
	case partHealth:
		return " (listen.health)"
	case partHealthTLS:
		return " (listen.health_tls)"
	}
	return ""
}

func samePort(a, b string) bool {
	_, p, err := net.SplitHostPort(a)
	_, q, err2 := net.SplitHostPort(b)
	return err == nil && err2 == nil && p == q
}
