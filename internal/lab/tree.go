package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// stopTree stops a tree and returns its processes. All that are found together are
// stopped together: a host that freezes does not do so process by process.
func stopTree(pid int) ([]int, error) {
	var stopped []int
	for {
		fresh := slices.DeleteFunc(tree(pid), func(p int) bool { return slices.Contains(stopped, p) })
		if len(fresh) == 0 {
			return stopped, nil
		}
		if err := freezeAll(fresh); err != nil {
			return nil, err
		}
		stopped = append(stopped, fresh...) // they may have started others before
	}
}

func freezeOne(pid int) error { return freezeAll([]int{pid}) }

func freezeAll(pids []int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("lab: stopping process %d: %w", pid, err)
		}
	}
	return waitStates(pids, "stopped", func(s byte) bool { return s == 'T' || s == 't' || s == 0 || s == 'Z' || s == 'X' })
}

// thawTree lets a process and its descendants run again.
func thawTree(pid int) error {
	var errs []error
	for _, p := range tree(pid) {
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

// tree returns a process and its descendants, from its root down.
func tree(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children(pids[i])...)
	}
	return pids
}

// children asks the kernel for them, thread by thread. One that does not keep that
// list has all its processes looked through, which takes a hundred times as long.
func children(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid)) // the pattern is valid
	if len(lists) == 0 {
		return slices.DeleteFunc(processes(), func(p int) bool { return stat(p).parent != pid })
	}
	var pids []int
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for f := range strings.FieldsSeq(string(b)) {
			if p, err := strconv.Atoi(f); err == nil {
				pids = append(pids, p)
			}
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
