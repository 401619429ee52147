package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	firstPort = 10000
	lastPort  = 32767 // used when the kernel's range of outgoing ports is unknown
)

// FreePort returns a TCP port of 127.0.0.1 on which nothing listens. It is
// reserved for this lab until Close: no other lab on the machine gets it, and
// it lies outside the range from which the kernel takes ports for outgoing
// connections.
func (l *Lab) FreePort() (int, error) { return l.freeRow(1) }

// freeRow returns the first of n such ports that follow each other.
func (l *Lab) freeRow(n int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, errors.New("lab: free port: the lab is closed")
	}
	last := outgoingFrom() - n
	for range 2000 {
		port := firstPort + rand.IntN(last-firstPort+1)
		if l.reserve(port, n) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("lab: no free port between %d and %d", firstPort, last)
}

// reserve takes all of n ports from one on, or none.
func (l *Lab) reserve(first, n int) bool {
	var locks []net.Listener
	for port := first; port < first+n; port++ {
		// An abstract socket is a lock that the kernel drops when we die.
		lock, err := listen("unix", "@pgsteer-lab-port-"+strconv.Itoa(port))
		if err == nil {
			locks = append(locks, lock)
		}
		if err != nil || !free(port) {
			for _, lock := range locks {
				_ = lock.Close()
			}
			return false
		}
	}
	for i, lock := range locks {
		l.ports[first+i] = lock
	}
	return true
}

// FreeAddr is FreePort as an address, "127.0.0.1:port".
func (l *Lab) FreeAddr() (string, error) {
	port, err := l.FreePort()
	if err != nil {
		return "", err
	}
	return loopback(port), nil
}

func (l *Lab) freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		p, err := l.FreePort()
		if err != nil {
			return nil, err
		}
		ports[i] = p
	}
	return ports, nil
}

// listen is net.Listen; it never waits.
func listen(network, addr string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), network, addr)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func free(port int) bool {
	ln, err := listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}

// outgoingFrom returns the lowest port that the kernel gives to outgoing
// connections.
func outgoingFrom() int {
	var low, high int
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(b), &low, &high)
	}
	if err != nil || low < firstPort+2000 {
		return lastPort + 1
	}
	return low
}
