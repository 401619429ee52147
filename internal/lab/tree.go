package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// treeWait bounds the wait until a signal has had its effect.
const treeWait = 10 * time.Second

// Backends of PostgreSQL are leaders of their own process groups, so a signal
// to the postmaster's group does not reach them: trees are found by parent.

// killTree kills a process and its descendants and waits until they are gone. A
// process is stopped first, so that it starts no other one meanwhile.
func killTree(pid int) error {
	pids, err := stopTree(pid)
	if err != nil {
		return err
	}
	for _, p := range pids {
		_ = syscall.Kill(p, syscall.SIGKILL) // it may have ended
	}
	return waitStates(pids, "dead", func(s byte) bool { return s == 0 || s == 'Z' || s == 'X' })
}

// freezeTree stops a process and its descendants (SIGSTOP) and waits until they
// stand still.
func freezeTree(pid int) error {
	_, err := stopTree(pid)
	return err
}

// stopTree stops a tree from its root down and returns its processes.
func stopTree(pid int) ([]int, error) {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		if err := freezeOne(pids[i]); err != nil {
			return nil, err
		}
		pids = append(pids, children(pids[i])...)
	}
	return pids, nil
}

func freezeOne(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("lab: stopping process %d: %w", pid, err)
	}
	return waitStates([]int{pid}, "stopped", func(s byte) bool { return s == 'T' || s == 't' || s == 0 || s == 'Z' || s == 'X' })
}

// thawTree lets a process and its descendants run again.
func thawTree(pid int) error {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children(pids[i])...)
	}
	var errs []error
	for _, p := range pids {
		if err := syscall.Kill(p, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("lab: continuing process %d: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func waitStates(pids []int, what string, ok func(byte) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), treeWait)
	defer cancel()
	for _, pid := range pids {
		err := poll(ctx, fmt.Sprintf("process %d is %s", pid, what), time.Millisecond, func() (bool, error) {
			s := stat(pid).state
			return ok(s), fmt.Errorf("state %c", s)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// procStat is what the kernel says of a process. Its state is 0 if there is no
// such process.
type procStat struct {
	state    byte
	parent   int
	terminal bool // whether it has a controlling terminal
}

func stat(pid int) procStat {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}
	}
	return parseStat(string(b))
}

func parseStat(s string) procStat {
	// The name in parentheses may contain anything, also spaces and ")".
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 5 {
		return procStat{}
	}
	parent, _ := strconv.Atoi(f[1])
	return procStat{state: f[0][0], parent: parent, terminal: f[4] != "0"}
}

func processes() []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	pids := make([]int, 0, len(dirs))
	for _, d := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func children(pid int) []int {
	var pids []int
	for _, p := range processes() {
		if stat(p).parent == pid {
			pids = append(pids, p)
		}
	}
	return pids
}

// workingIn returns the processes whose working folder is dir or inside it,
// without ourselves and without those that have a terminal: our servers have
// none, but the shell of somebody who looks around has.
func workingIn(dir string) []int {
	var pids []int
	for _, p := range processes() {
		cwd, err := os.Readlink("/proc/" + strconv.Itoa(p) + "/cwd")
		if err != nil || p == os.Getpid() {
			continue
		}
		if (cwd == dir || strings.HasPrefix(cwd, dir+"/")) && !stat(p).terminal {
			pids = append(pids, p)
		}
	}
	return pids
}
