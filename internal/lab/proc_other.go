//go:build !linux

package lab

import "syscall"

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
