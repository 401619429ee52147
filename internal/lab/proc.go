package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// spec says what to start.
type spec struct {
	name string   // for errors and logs
	path string   // of the program
	args []string // without the program
	dir  string   // working folder, inside the lab
	env  []string // added to the small environment that all children get
	log  string   // file that gets both outputs
	drop bool     // run as the account that runs PostgreSQL
}

// process is a child. Its exit is always collected.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	done   chan struct{}
	frozen atomic.Bool
}

// starter starts all children on one thread that lives as long as the lab: the
// kernel sends the signal of PR_SET_PDEATHSIG when the *thread* ends that
// started a child, and Go may end any thread that is not locked.
func (l *Lab) starter() {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	for {
		select {
		case f := <-l.starts:
			f()
		case <-l.closing:
			return
		}
	}
}

func (l *Lab) startOnThread(cmd *exec.Cmd) error {
	res := make(chan error, 1)
	select {
	case l.starts <- func() { res <- cmd.Start() }:
		return <-res
	case <-l.closing:
		return errors.New("the lab is closed")
	}
}

// command prepares s without its outputs.
func (l *Lab) command(s spec) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), s.path, s.args...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + os.TempDir(), "LC_ALL=C.UTF-8", "TZ=UTC",
	}, s.env...)
	cmd.SysProcAttr = childAttr()
	if s.drop && l.account != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: l.account.uid, Gid: l.account.gid}
	}
	return cmd
}

// start starts a server.
func (l *Lab) start(s spec) (*process, error) {
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lab: starting %s: %w", s.name, err)
	}
	defer out.Close()
	cmd := l.command(s)
	cmd.Stdout, cmd.Stderr = out, out
	if err := l.startOnThread(cmd); err != nil {
		return nil, fmt.Errorf("lab: starting %s: %w", s.name, err)
	}
	p := &process{name: s.name, cmd: cmd, log: s.log, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its state stays in cmd
		close(p.done)
	}()
	l.log.Info("started", "server", s.name, "pid", p.pid())
	return p, nil
}

// run runs a program to its end and returns its output. A failure's error has
// the end of that output.
func (l *Lab) run(ctx context.Context, s spec) (string, error) {
	var out bytes.Buffer
	cmd := l.command(s)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := l.startOnThread(cmd); err != nil {
		return "", fmt.Errorf("lab: running %s: %w", s.name, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = errors.Join(context.Cause(ctx), killTree(cmd.Process.Pid), <-done)
	}
	if err != nil {
		return out.String(), fmt.Errorf("lab: %s: %w: %s", s.name, err, lastLines(out.String(), 5))
	}
	return out.String(), nil
}

// slot holds the process of a server that can be started again and again. The
// zero value has none yet.
type slot struct {
	starting sync.Mutex // held by start
	mu       sync.Mutex
	p        *process // nil before the first start
}

func (s *slot) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p
}

// readiness says what makes a started server usable.
type readiness struct {
	what string // for errors
	ask  func(*process) (bool, error)
}

// start starts a server and returns when it is ready. It does nothing if the
// server runs.
func (s *slot) start(ctx context.Context, l *Lab, sp spec, r readiness) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.process().alive() {
		return nil
	}
	p, err := l.start(sp)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.p = p
	s.mu.Unlock()
	return poll(ctx, r.what, pollEvery, func() (bool, error) {
		if err := p.died(); err != nil {
			return false, err
		}
		return r.ask(p)
	})
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// alive reports whether the process has not ended. A nil process is dead.
func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// usable reports whether the process runs and is not frozen.
func (p *process) usable() bool { return p.alive() && !p.frozen.Load() }

// died is an error that ends poll when the process has ended, else nil.
func (p *process) died() error {
	if p.alive() {
		return nil
	}
	return &fatalError{fmt.Errorf("%s ended: %s: %s", p.name, p.cmd.ProcessState, tail(p.log, 8))}
}

// stop asks the process to end by sig and waits. If ctx ends first, the process
// and its descendants are killed and ctx's error is returned.
func (p *process) stop(ctx context.Context, sig syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	if p.frozen.Load() { // it could not react
		return p.kill()
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("lab: stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("lab: stopping %s: it had to be killed: %w", p.name, context.Cause(ctx)), p.kill())
	}
}

// close stops the process within the grace period. Having to kill it is no error.
func (p *process) close(sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	err := p.stop(ctx, sig)
	if p.alive() {
		return err
	}
	return nil
}

// kill kills the process and its descendants at once.
func (p *process) kill() error {
	if !p.alive() {
		return nil
	}
	err := killTree(p.pid())
	<-p.done
	p.frozen.Store(false)
	return err
}

func (p *process) freeze() error {
	if !p.alive() {
		return fmt.Errorf("lab: freezing %s: it does not run", p.name)
	}
	p.frozen.Store(true)
	return freezeTree(p.pid())
}

func (p *process) thaw() error {
	if !p.alive() {
		return fmt.Errorf("lab: thawing %s: it does not run", p.name)
	}
	p.frozen.Store(false)
	return thawTree(p.pid())
}

// tail returns the last lines of a file, for errors.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return filepath.Base(path) + ": " + lastLines(string(b), n)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
