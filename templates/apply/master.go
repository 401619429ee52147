package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	masterPoll = 100 * time.Millisecond // between two looks at the processes
	// masterStay is how long a new worker must stay: one that cannot finish its
	// start (a missing chroot) shows up and dies a moment later.
	masterStay = 300 * time.Millisecond
	masterAsk  = 2 * time.Second // one look; the socket is deaf while the master starts anew
	maxAnswer  = 1 << 20
)

// errNotRunning says that nobody listens at the master socket.
var errNotRunning = errors.New("HAProxy's master process does not answer")

// master speaks to the CLI of HAProxy's master process.
type master struct{ socket string }

// processes is the answer to "show proc".
type processes struct {
	workers map[int]bool
	old     map[int]bool // workers that a reload replaced and that still have sessions
	failed  int          // reloads that failed since the last good one
}

func (p processes) has(pid int) bool { return p.workers[pid] || p.old[pid] }

func (m master) ask(ctx context.Context, command string) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", m.socket)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNotRunning, err)
	}
	defer func() { _ = c.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		return "", fmt.Errorf("%q to %s: %w", command, m.socket, err)
	}
	// Without the half-close a 2.6 master keeps the connection open after its
	// answer. The answer may come in parts and is read to its end.
	if half, ok := c.(*net.UnixConn); ok {
		if err := half.CloseWrite(); err != nil {
			return "", fmt.Errorf("%q to %s: %w", command, m.socket, err)
		}
	}
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("%q to %s: %w", command, m.socket, err)
	}
	return string(b), nil
}

func (m master) processes(ctx context.Context) (processes, error) {
	ctx, cancel := context.WithTimeout(ctx, masterAsk)
	defer cancel()
	answer, err := m.ask(ctx, "show proc")
	if err != nil {
		return processes{}, err
	}
	p := parseProcesses(answer)
	if len(p.workers) == 0 {
		return p, fmt.Errorf("%s lists no worker; is it the master's socket (haproxy -S)?", m.socket)
	}
	return p, nil
}

// reload asks for a reload. Up to 2.6 the answer is empty, later it says
// Success=0 or 1; the connection may also break while the master starts anew.
func (m master) reload(ctx context.Context) (string, error) {
	answer, err := m.ask(ctx, "reload")
	if strings.Contains(answer, "Success=0") {
		return answer, errors.New("HAProxy says that the reload failed")
	}
	if errors.Is(err, errNotRunning) {
		return answer, err
	}
	return answer, nil
}

// confirm waits until a worker that was not there before has appeared and
// stayed, or until HAProxy counts one more failed reload.
func (m master) confirm(ctx context.Context, before processes) error {
	fresh, since := 0, time.Duration(0)
	last := errors.New("no new worker has appeared")
	look := time.NewTicker(masterPoll)
	defer look.Stop()
	for {
		now, err := m.processes(ctx)
		switch {
		case err != nil:
			fresh, last = 0, err
		case now.failed > before.failed:
			return fmt.Errorf("HAProxy counts %d failed reloads; the old worker goes on", now.failed)
		case fresh != 0 && now.workers[fresh]:
			if since += masterPoll; since >= masterStay {
				return nil
			}
		default:
			fresh, since = appeared(before, now), 0
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the reload could not be confirmed: %w", last)
		case <-look.C:
		}
	}
}

func appeared(before, now processes) int {
	for pid := range now.workers {
		if !before.has(pid) {
			return pid
		}
	}
	return 0
}

var failedReloads = regexp.MustCompile(`\[failed: (\d+)\]`)

// parseProcesses reads the table of "show proc": the master, then the workers
// under their headings.
func parseProcesses(s string) processes {
	p := processes{workers: map[int]bool{}, old: map[int]bool{}}
	into := map[int]bool{}
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		switch line {
		case "# workers":
			into = p.workers
			continue
		case "# old workers":
			into = p.old
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		if m := failedReloads.FindStringSubmatch(line); m != nil && words[1] == "master" {
			p.failed, _ = strconv.Atoi(m[1])
		}
		if pid, err := strconv.Atoi(words[0]); err == nil && words[1] == "worker" {
			into[pid] = true
		}
	}
	return p
}
