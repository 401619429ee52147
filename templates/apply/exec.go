package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Runner runs commands.
type Runner interface {
	// Run runs a program until it ends or the context does, and returns the end of
	// what it printed. The error is an *ExitError if and only if the program ran to
	// its own end with another exit code than 0.
	Run(ctx context.Context, args []string) (output string, err error)
}

// ExitError says that a command ran and ended with an exit code other than 0.
type ExitError struct{ Code int }

// Error names the exit code.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Exec runs commands for real, each in a process group of its own. At the
// deadline the group gets SIGTERM and after Grace SIGKILL.
type Exec struct {
	// Grace is the time between SIGTERM and SIGKILL: 2 s.
	Grace time.Duration
	// Env is added to the environment, which otherwise has the caller's values of
	// a few harmless variables only: no token and no password reaches a command.
	Env []string
}

var _ Runner = (*Exec)(nil)

const maxOutput = 4 << 10

// Run implements Runner.
func (e *Exec) Run(ctx context.Context, args []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New("the command is empty")
	}
	var out tail
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(environment(), e.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = e.Grace
	if cmd.WaitDelay <= 0 {
		cmd.WaitDelay = 2 * time.Second
	}
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		// Whatever of the group ignored SIGTERM; it may be gone already.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return out.String(), outcome(ctx, args[0], err)
}

// outcome sorts how a command ended.
func outcome(ctx context.Context, name string, err error) error {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		// ErrWaitDelay: it ended well, and something it left running still holds
		// its output.
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end in time and was stopped: %w", name, context.Cause(ctx))
	case errors.As(err, &exit) && exit.Exited():
		return &ExitError{Code: exit.ExitCode()}
	default:
		return fmt.Errorf("%s failed: %w", name, err)
	}
}

// environment is what a command may know of ours.
func environment() []string {
	env := []string{}
	for _, name := range []string{
		"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR",
		"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", // systemctl --user needs them
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// tail keeps the end of what is written to it: twice as much as it gives out, so
// that a secret at the cut is masked together with its name.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 2 * maxOutput
	t.b = append(t.b, p[max(0, len(p)-most):]...)
	if cut := len(t.b) - most; cut > 0 {
		t.b = append(t.b[:0], t.b[cut:]...)
	}
	return len(p), nil
}

// String returns the end without what looks like a secret.
func (t *tail) String() string {
	s := masked(strings.ToValidUTF8(string(t.b), "?"))
	return strings.TrimSpace(strings.ToValidUTF8(s[max(0, len(s)-maxOutput):], ""))
}

var secret = regexp.MustCompile(`(?i)((?:password|passwd|token|secret)["']?\s*[=: ]\s*)\S+`)

// masked hides what looks like a secret in a command's output.
func masked(s string) string { return secret.ReplaceAllString(s, "$1***") }
