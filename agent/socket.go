package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
)

// partSocket serves on a UNIX socket what partStatus serves over TCP.
const partSocket = "socket"

// planSocket is the socket at a path. Its mode is taken over by the running one.
func (a *Agent) planSocket(path string, mode config.SocketMode) plan {
	return plan{
		name: partSocket, made: path, listens: true,
		make: func() (*part, error) { return a.buildSocket(path, mode) },
	}
}

func (a *Agent) buildSocket(path string, mode config.SocketMode) (*part, error) {
	l, err := bindUnix(path, mode)
	if err != nil {
		return nil, fmt.Errorf("%s cannot listen on %s: %w", partSocket, path, err)
	}
	srv := a.statusServer()
	return &part{
		listen: l,
		run:    func(ctx context.Context) error { return srv.Serve(ctx, l) },
		live: func(cfg *config.Config) {
			if err := chmod(path, cfg.Listen.SocketMode); err != nil {
				a.log.Warn("the socket's mode was not changed, who may ask stays as it is", "socket", path, "err", err)
			}
		},
	}, nil
}

// socketAnswers bounds the question whether somebody listens at a path.
const socketAnswers = time.Second

// bindUnix listens at a path, where a process that was killed may have left its
// socket. Until the new one's mode is set, which is the next thing done, the umask
// decides who may ask.
func bindUnix(path string, mode config.SocketMode) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, errors.New("there is something else than a socket; it is left alone")
	default:
		if err := removeDead(path); err != nil {
			return nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeDead removes a socket that nobody listens at.
func removeDead(path string) error {
	c, err := (&net.Dialer{Timeout: socketAnswers}).Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return errors.New("another process listens there; is a second agent running?")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

func chmod(path string, mode config.SocketMode) error { return os.Chmod(path, fs.FileMode(mode)) }
