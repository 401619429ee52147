package lab

import "syscall"

// childAttr gives a child a session of its own, without our terminal, so that
// ctrl-C there reaches us alone, and has the kernel kill it when we die.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
