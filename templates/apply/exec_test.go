package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExec(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		output string
		code   int // of an *ExitError
		fault  string
	}{
		{name: "good", args: []string{"sh", "-c", "echo out; echo err >&2"}, output: "out\nerr"},
		{name: "exit code", args: []string{"sh", "-c", "echo no; exit 3"}, output: "no", code: 3},
		{name: "no shell in between", args: []string{"echo", "a b; exit 1", "$HOME"}, output: "a b; exit 1 $HOME"},
		{name: "missing", args: []string{"/no/such/program"}, fault: "no such file"},
		{name: "empty", fault: "empty"},
		{name: "killed by a signal", args: []string{"sh", "-c", "kill -9 $$"}, fault: "killed"},
		{name: "secrets", args: []string{"echo", "user=a password=hunter2 Token: xyz"}, output: "user=a password=*** Token: ***"},
		{name: "a secret at the cut", args: []string{"sh", "-c", "printf 'password=hunter2'; printf %4089s end"}, output: "end"},
		{name: "long", args: []string{"sh", "-c", "for i in $(seq 5000); do echo 0123456789; done; echo end"}, output: "end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := (&Exec{}).Run(t.Context(), c.args)
			var exit *ExitError
			switch {
			case errors.As(err, &exit):
				if exit.Code != c.code {
					t.Errorf("exit code %d, want %d", exit.Code, c.code)
				}
			case c.code != 0, (err != nil) != (c.fault != ""), err != nil && !strings.Contains(err.Error(), c.fault):
				t.Errorf("error %v, want exit code %d or %q", err, c.code, c.fault)
			}
			if strings.Contains(out, "hunter2") {
				t.Errorf("a secret got through: %.40q", out)
			}
			if !strings.HasSuffix(out, c.output) || len(out) > maxOutput {
				t.Errorf("%d bytes, output %.80q, want %q", len(out), out, c.output)
			}
		})
	}
}

func TestExecEnvironment(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "secret")
	t.Setenv("PGPASSWORD", "secret")
	out, err := (&Exec{Env: []string{"ROLE=lb"}}).Run(t.Context(), []string{"env"})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	if strings.Contains(out, "secret") || strings.Contains(out, "PGPASSWORD") {
		t.Errorf("a secret got through:\n%s", out)
	}
	if !slices.Contains(lines, "ROLE=lb") || !slices.Contains(lines, "PATH="+os.Getenv("PATH")) {
		t.Errorf("incomplete:\n%s", out)
	}
}

// The whole group ends at the deadline, also what ignores SIGTERM.
func TestExecDeadline(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := (&Exec{Grace: 200 * time.Millisecond}).Run(ctx, []string{
		"sh", "-c",
		`trap "" TERM; sh -c 'trap "" TERM; echo $$ >> "` + pids + `"; while :; do sleep 1; done' & echo $$ >> "` + pids + `"; wait; wait`,
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for s := range strings.FieldsSeq(string(b)) {
		pid, _ := strconv.Atoi(s)
		waitGone(t, pid)
	}
}

// waitGone waits until a process has ended; a zombie counts as ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d still runs", pid)
}

// What goes into the background does not hold up a good command for long.
func TestExecDaemon(t *testing.T) {
	out, err := (&Exec{Grace: 100 * time.Millisecond}).Run(t.Context(), []string{"sh", "-c", "sleep 3 & echo started"})
	if err != nil || out != "started" {
		t.Errorf("output %q, error %v", out, err)
	}
}
