package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// HAProxyOptions says what HAProxy runs with. Either Config or ConfigFile is
// needed.
type HAProxyOptions struct {
	// Config is the text of haproxy.cfg. In it these words are replaced:
	// @ADMIN_SOCKET@ by the path for "stats socket … level admin", @DIR@ by a
	// folder for this HAProxy alone, which is also where its configuration lies.
	Config string
	// ConfigFile is used instead of Config if set: a file that somebody else
	// writes. Nothing in it is replaced.
	ConfigFile string
	// AdminSocket is the path of the stats socket in ConfigFile; empty means a new
	// path. It must be short, see Lab.SocketPath.
	AdminSocket string
	// Args are added to the arguments, for example further files by "-f".
	Args []string
}

// HAProxy is a running HAProxy in master-worker mode.
type HAProxy struct {
	lab    *Lab
	bin    string
	name   string
	dir    string
	config string
	admin  string
	args   []string

	slot
}

// HAProxy starts HAProxy and returns when its worker runs and, if the
// configuration has a stats socket at AdminSocket, answers there.
func (l *Lab) HAProxy(ctx context.Context, o HAProxyOptions) (*HAProxy, error) {
	bin, err := findHAProxy()
	if err != nil {
		return nil, err
	}
	name := l.unique("haproxy")
	h := &HAProxy{lab: l, bin: bin, name: name, dir: filepath.Join(l.dir, name), config: o.ConfigFile, admin: o.AdminSocket, args: o.Args}
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if h.admin == "" {
		h.admin = l.SocketPath(name + ".sock")
	}
	if h.config == "" {
		h.config = filepath.Join(h.dir, "haproxy.cfg")
		if err := h.WriteConfig(o.Config); err != nil {
			return nil, err
		}
	}
	l.onClose(func() error { return h.process().close(syscall.SIGTERM) })
	if err := h.Start(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// WriteConfig replaces the text of the configuration, with the same words
// replaced as in HAProxyOptions.Config. It takes effect with the next Reload.
func (h *HAProxy) WriteConfig(text string) error {
	text = strings.NewReplacer("@ADMIN_SOCKET@", h.admin, "@DIR@", h.dir).Replace(text)
	if err := os.WriteFile(h.config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// AdminSocket returns the path of the stats socket.
func (h *HAProxy) AdminSocket() string { return h.admin }

// MasterSocket returns the path of the master's socket.
func (h *HAProxy) MasterSocket() string { return h.lab.SocketPath(h.name + "-master.sock") }

// ConfigFile returns the path of the configuration.
func (h *HAProxy) ConfigFile() string { return h.config }

// PIDFile returns the path of the file that holds the master's process number.
func (h *HAProxy) PIDFile() string { return filepath.Join(h.dir, "pid") }

// LogFile returns the path of what HAProxy prints.
func (h *HAProxy) LogFile() string { return filepath.Join(h.dir, "haproxy.log") }

// PID returns the process number of the master, or 0 if it does not run.
func (h *HAProxy) PID() int {
	if p := h.process(); p.alive() {
		return p.pid()
	}
	return 0
}

// ReloadCommand returns a command that reloads this HAProxy and, as systemd's
// unit does, ends before the reload has happened.
func (h *HAProxy) ReloadCommand() []string {
	return []string{"/bin/sh", "-c", `kill -USR2 "$(cat "$1")"`, "reload", h.PIDFile()}
}

// Start starts HAProxy after Stop or Kill. It does nothing if it runs.
func (h *HAProxy) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	args := append([]string{"-W", "-S", h.MasterSocket(), "-p", h.PIDFile(), "-f", h.config}, h.args...)
	s := spec{name: h.name, path: h.bin, args: args, dir: h.dir, log: h.LogFile()}
	return h.start(ctx, h.lab, s, readiness{h.name + " has a worker", func(*process) (bool, error) {
		w, err := h.Workers(ctx)
		if err != nil || len(w) != 1 {
			return false, errors.Join(err, fmt.Errorf("%d workers", len(w)))
		}
		return h.adminReady(ctx)
	}})
}

// adminReady asks the stats socket, if the configuration has one.
func (h *HAProxy) adminReady(ctx context.Context) (bool, error) {
	text, err := os.ReadFile(h.config)
	if err != nil || !strings.Contains(string(text), h.admin) {
		return err == nil, err
	}
	_, err = h.Command(ctx, "show info")
	return err == nil, err
}

// Stop ends master and workers, with their sessions.
func (h *HAProxy) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return h.process().stop(ctx, syscall.SIGTERM)
}

// Restart is Stop and Start.
func (h *HAProxy) Restart(ctx context.Context) error {
	if err := h.Stop(ctx); err != nil {
		return err
	}
	return h.Start(ctx)
}

// Kill kills master and workers by SIGKILL.
func (h *HAProxy) Kill() error { return h.process().kill() }

// Freeze stops master and workers by SIGSTOP.
func (h *HAProxy) Freeze() error { return h.process().freeze() }

// Thaw undoes Freeze.
func (h *HAProxy) Thaw() error { return h.process().thaw() }

// Command sends one command to the stats socket and returns the whole answer.
func (h *HAProxy) Command(ctx context.Context, cmd string) (string, error) {
	return ask(ctx, h.admin, cmd)
}

// MasterCommand sends one command to the master's socket.
func (h *HAProxy) MasterCommand(ctx context.Context, cmd string) (string, error) {
	return ask(ctx, h.MasterSocket(), cmd)
}

// ask sends a line to a Unix socket and reads until its end, at most 5 seconds.
func ask(ctx context.Context, path, cmd string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return "", fmt.Errorf("lab: asking %q: %w", cmd, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, cmd+"\n"); err != nil {
		return "", fmt.Errorf("lab: asking %q at %s: %w", cmd, path, err)
	}
	// The master of HAProxy 2.6 keeps the connection open until we half-close it.
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return "", fmt.Errorf("lab: asking %q at %s: %w", cmd, path, err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("lab: asking %q at %s: %w", cmd, path, err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// Workers returns the process numbers of the present worker; those that only
// finish their sessions after a reload are not among them.
func (h *HAProxy) Workers(ctx context.Context) ([]int, error) {
	s, err := h.procs(ctx)
	return s.workers, err
}

// OldWorkers returns the process numbers of the workers that a reload replaced
// and that still have sessions.
func (h *HAProxy) OldWorkers(ctx context.Context) ([]int, error) {
	s, err := h.procs(ctx)
	return s.old, err
}

// procs is the answer to "show proc".
type procs struct {
	failed       string // of the master's line: "[failed: N]"
	workers, old []int
}

func (h *HAProxy) procs(ctx context.Context) (procs, error) {
	out, err := h.MasterCommand(ctx, "show proc")
	if err != nil {
		return procs{}, err
	}
	return parseProcs(out), nil
}

func parseProcs(out string) procs {
	var s procs
	old := false
	for line := range strings.Lines(out) {
		old = old || strings.HasPrefix(line, "# old workers")
		f := strings.Fields(line)
		if len(f) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		switch {
		case err != nil:
		case f[1] == "master":
			_, s.failed, _ = strings.Cut(line, "[")
		case f[1] == "worker" && old:
			s.old = append(s.old, pid)
		case f[1] == "worker":
			s.workers = append(s.workers, pid)
		}
	}
	return s
}

// Reload has the master read the configuration again and returns when a new
// worker runs. It fails if the configuration is refused; the old worker goes on.
func (h *HAProxy) Reload(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	before, err := h.procs(ctx)
	if err != nil {
		return err
	}
	if _, err := h.MasterCommand(ctx, "reload"); err != nil {
		return err
	}
	return poll(ctx, h.name+" has a new worker", pollEvery, func() (bool, error) {
		if err := h.process().died(); err != nil {
			return false, err
		}
		now, err := h.procs(ctx)
		if err != nil { // the socket refuses while the master executes itself anew
			return false, err
		}
		if failures(now.failed) > failures(before.failed) {
			return false, &fatalError{fmt.Errorf("the reload failed: %s", tail(h.LogFile(), 6))}
		}
		if len(now.workers) != 1 || len(before.workers) == 1 && now.workers[0] == before.workers[0] {
			return false, fmt.Errorf("workers %v, before %v", now.workers, before.workers)
		}
		return h.adminReady(ctx)
	})
}

// failures reads N of "failed: N]".
func failures(s string) int {
	var n int
	_, _ = fmt.Sscanf(s, "failed: %d", &n)
	return n
}
