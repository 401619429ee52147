package lab_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// victimEnv makes the test binary a program that starts a lab and waits.
const victimEnv = "PGSTEER_LAB_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		os.Exit(victim())
	}
	goleak.VerifyTestMain(m)
}

func victim() int {
	l, err := lab.New(lab.Options{})
	if err == nil {
		_, err = l.Cluster(context.Background(), lab.ClusterOptions{Nodes: 1})
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		return 1
	}
	os.Stdout.WriteString(l.Dir() + "\n")
	select {}
}

// TestDiesWithParent: a lab whose process is killed leaves nothing behind.
func TestDiesWithParent(t *testing.T) {
	labtest.Need(t, lab.NeedPostgres)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, must(os.Executable())(t))
	cmd.Env = append(os.Environ(), victimEnv+"=1")
	out := must(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := must(bufio.NewReader(out).ReadString('\n'))(t)
	dir := strings.TrimSpace(line)
	if !filepath.IsAbs(dir) || len(inside(dir)) == 0 {
		t.Fatalf("%s: nothing runs there", dir)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "nothing runs in "+dir, func() bool { return len(inside(dir)) == 0 })
	eventually(t, dir+" is removed", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

// TestClose: a second Close does nothing, and nothing can be started after it.
func TestClose(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := lab.New(lab.Options{Dir: dir})
	if err != nil {
		if os.Geteuid() != 0 {
			t.Fatal(err)
		}
		l = must(lab.New(lab.Options{}))(t) // the account postgres cannot reach a test's folder
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(l.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", l.Dir())
	}
	if _, err := l.FreePort(); err == nil {
		t.Error("a closed lab gave a port")
	}
}

// TestNewRefusesFullFolder: what is in a folder must not be removed by Close.
func TestNewRefusesFullFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.New(lab.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Fatalf("got %v", err)
	}
}

// TestMissing: the error says how to get what is missing.
func TestMissing(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var missing *lab.Missing
	if err := lab.Available(lab.NeedConsul); !errors.As(err, &missing) || !strings.Contains(err.Error(), "scripts/setup test") {
		t.Fatalf("got %v", err)
	}
}

// TestMissingPatroni: an environment whose interpreter or module is gone is none, and
// its script tells nothing.
func TestMissingPatroni(t *testing.T) {
	labtest.Need(t, lab.NeedPostgres)
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := filepath.Join(cache, "pgsteer", "lab", lab.NeedPatroni4)
	script, python := filepath.Join(dir, "bin", "patroni"), filepath.Join(dir, "bin", "python")
	module := filepath.Join(dir, "lib", "python3.11", "site-packages", lab.NeedPatroni4+".dist-info")
	program := []byte("#!/nowhere/bin/python\n")
	for _, step := range []struct {
		name string
		make func() error
		good bool
	}{
		{"folders", func() error { return errors.Join(os.MkdirAll(filepath.Dir(script), 0o700), os.MkdirAll(module, 0o700)) }, false},
		{"script", func() error { return os.WriteFile(script, program, 0o700) }, false},
		{"link to no interpreter", func() error { return os.Symlink(filepath.Join(dir, "none"), python) }, false},
		{"interpreter", func() error { return errors.Join(os.Remove(python), os.WriteFile(python, program, 0o700)) }, true},
		{"no script", func() error { return os.Remove(script) }, true},
		{"no module", func() error { return os.Remove(module) }, false},
	} {
		if err := step.make(); err != nil {
			t.Fatal(err)
		}
		var missing *lab.Missing
		if err := lab.Available(lab.NeedPatroni4); (err == nil) != step.good || err != nil && !errors.As(err, &missing) {
			t.Errorf("%s: got %v", step.name, err)
		}
	}
}

// inside returns the processes that work in a folder.
func inside(dir string) []string {
	var pids []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is valid
	for _, p := range links {
		if cwd, err := os.Readlink(p); err == nil && strings.HasPrefix(cwd, dir) {
			pids = append(pids, filepath.Base(filepath.Dir(p)))
		}
	}
	return pids
}
