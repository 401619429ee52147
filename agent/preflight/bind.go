package preflight

import (
	"syscall"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
)

// bind binds a port for a moment.
func bind(b haproxycfg.Bind, port int) error {
	fd, err := hold(b, port)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// hold binds a port and does not listen. As HAProxy does it sets SO_REUSEADDR, so that
// old connections do not count. Not SO_REUSEPORT, which HAProxy sets too: with it the
// port of another HAProxy of the same user could be bound as well, and the kernel would
// then give each of the two some of the clients.
func hold(b haproxycfg.Bind, port int) (fd int, err error) {
	family, address := place(b, port)
	syscall.ForkLock.RLock() // no command that is started meanwhile shall have it
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil && family == syscall.AF_INET6 && (b.V6Only || b.V4V6) { // else net.ipv6.bindv6only holds
		only := 0
		if b.V6Only {
			only = 1
		}
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, only)
	}
	if err == nil {
		err = syscall.Bind(fd, address)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return 0, err
	}
	return fd, nil
}

func place(b haproxycfg.Bind, port int) (family int, address syscall.Sockaddr) {
	if b.Host.Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: b.Host.As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: port, Addr: b.Host.As16()}
}
