package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
)

// 127.77.0.1 is a loopback address on which other tests of this host take no port.

// listen has a foreign program's port, as control makes its socket.
func listen(t *testing.T, address string, control func(network, address string, c syscall.RawConn) error) (l net.Listener, port int) {
	t.Helper()
	l, err := (&net.ListenConfig{Control: control}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

func lines(text string) []haproxycfg.Line { return haproxycfg.Lines("/etc/f.cfg", []byte(text)) }

// faults are those of a listen section with a bind; had is what HAProxy's has.
func faults(bind, had string) []string {
	var before []haproxycfg.Bind
	if had != "" {
		before = haproxycfg.Binds(lines("listen l\n bind " + had + "\n"))
	}
	return of("listen l\n bind "+bind+"\n", before)
}

func of(text string, had []haproxycfg.Bind) (all []string) {
	for _, err := range Faults(lines(text), had) {
		all = append(all, err.Error())
	}
	return all
}

func wantFault(t *testing.T, got []string, parts ...string) {
	t.Helper()
	if len(got) != 1 {
		t.Fatalf("faults %q, want one with %q", got, parts)
	}
	for _, p := range parts {
		if !strings.Contains(got[0], p) {
			t.Errorf("fault %q does not say %q", got[0], p)
		}
	}
}

func wantNone(t *testing.T, what string, got []string) {
	t.Helper()
	if len(got) != 0 {
		t.Errorf("%s: faults %q", what, got)
	}
}

func TestTakenPort(t *testing.T) {
	foreign, port := listen(t, "127.77.0.1:0", nil)
	at := fmt.Sprintf("127.77.0.1:%d", port)
	who := fmt.Sprintf("ss -ltnp 'sport = :%d'", port)
	wantFault(t, faults(at, ""), "/etc/f.cfg:2: bind "+at, "EADDRINUSE, address already in use", who)
	wantFault(t, faults(fmt.Sprintf("*:%d", port), ""), who)
	wantFault(t, faults(fmt.Sprintf("127.77.0.1:%d-%d", port-1, port), ""), who)
	wantFault(t, of(fmt.Sprintf("global\n stats socket ipv4@%s level admin\n", at), nil), "/etc/f.cfg:2: stats socket ipv4@"+at, who)
	// What HAProxy has may be in its own way.
	wantNone(t, "HAProxy's own", faults(at, at))
	wantNone(t, "narrower than HAProxy's", faults(at, fmt.Sprintf("*:%d", port)))
	wantNone(t, "wider than HAProxy's", faults(fmt.Sprintf(":::%d", port), at))
	wantNone(t, "maybe HAProxy's", faults(at, "${PLACE}:1"))
	// What cannot be told is not tried.
	wantNone(t, "a name", faults(fmt.Sprintf("localhost:%d", port), ""))
	wantNone(t, "an interface", faults(at+" interface lo", ""))
	_ = foreign.Close()
	wantNone(t, "free again", faults(at, ""))
}

// A port that another program shares with its like is no port for HAProxy: the
// kernel would divide the clients.
func TestSharedPort(t *testing.T) {
	const reusePort = 15 // SO_REUSEPORT of Linux, which package syscall lacks
	_, port := listen(t, "127.77.0.1:0", func(_, _ string, c syscall.RawConn) error {
		var set error
		return errors.Join(c.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1) }), set)
	})
	wantFault(t, faults(fmt.Sprintf("127.77.0.1:%d", port), ""), "EADDRINUSE")
}

// Connections that are over, and wait for late packets, take no port.
func TestOldConnections(t *testing.T) {
	l, port := listen(t, "127.77.0.1:0", nil)
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _, _ = server.Close(), client.Close(), l.Close() // the server's end waits
	wantNone(t, "after a connection", faults(fmt.Sprintf("127.77.0.1:%d", port), ""))
}

// While a port is tried no client gets in, and whoever wants the port has it.
func TestNobodyIsLetInOrKeptOut(t *testing.T) {
	l, port := listen(t, "127.77.0.1:0", nil)
	_ = l.Close()
	b := haproxycfg.Binds(lines(fmt.Sprintf("listen l\n bind 127.77.0.1:%d\n", port)))[0]
	fd, err := hold(b, port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if c, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting: %v, %v, want a refusal", c, err)
	}
	listen(t, l.Addr().String(), nil) // fails the test when it cannot
}

func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("there is no IPv6 on loopback: %v", err)
	} else {
		_ = l.Close()
	}
	_, port := listen(t, "127.77.0.1:0", nil)
	wantFault(t, faults(fmt.Sprintf(":::%d v4v6", port), ""), "EADDRINUSE")
	wantNone(t, "v6only", faults(fmt.Sprintf(":::%d v6only", port), ""))
	_, port = listen(t, "[::1]:0", nil)
	wantFault(t, faults(fmt.Sprintf("[::1]:%d", port), ""), "EADDRINUSE")
}

func TestForeignAddress(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_nonlocal_bind")
	if err == nil && strings.TrimSpace(string(b)) != "0" {
		t.Skip("net.ipv4.ip_nonlocal_bind is set: every address can be bound")
	}
	wantFault(t, faults("192.0.2.1:5432", ""), "/etc/f.cfg:2: bind 192.0.2.1:5432", "EADDRNOTAVAIL", "ip -br address")
}

// Rights are this process's own, and HAProxy has others.
func TestUnknownIsNoFault(t *testing.T) {
	for _, err := range []error{nil, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT, syscall.EMFILE} {
		if fault := explain(err, 80); fault != nil {
			t.Errorf("%v: %v", err, fault)
		}
	}
}

func TestTriesAreBounded(t *testing.T) {
	_, port := listen(t, "127.77.0.1:0", nil)
	b := haproxycfg.Binds(lines(fmt.Sprintf("listen l\n bind 127.77.0.1:%d\n", port)))[0]
	for tries, refused := range map[int]bool{0: false, 1: true} {
		left := tries
		if err := try(b, &left); (err != nil) != refused || left != 0 {
			t.Errorf("with %d tries: %v, %d are left", tries, err, left)
		}
	}
}

func TestFolders(t *testing.T) {
	here := t.TempDir()
	for _, tt := range []struct{ name, text, want string }{
		{"chroot", "global\n chroot /nowhere/at/all\n", "/etc/f.cfg:2: chroot /nowhere/at/all: the folder is not there"},
		{"a file as chroot", "global\n chroot /dev/null\n", "chroot /dev/null"},
		{"chroot is there", "global\n chroot " + here + "\n", ""},
		{"maybe a chroot", "global\n.if defined(A)\n chroot /nowhere/at/all\n.endif\n", ""},
		{"chroot by a variable", "global\n chroot \"${A}\"\n", ""},
		{"hidden from a unit", "global\n chroot /tmp/nowhere/at/all\n", ""},
		{"stats socket", "global\n stats socket /nowhere/at/all/a.sock level admin\n", "/etc/f.cfg:2: stats socket /nowhere/at/all/a.sock: folder /nowhere/at/all is not there"},
		{"stats socket is fine", "global\n stats socket /dev/a.sock level admin\n", ""},
		{"bind", "listen l\n bind unix@/nowhere/a.sock\n", "/etc/f.cfg:2: bind unix@/nowhere/a.sock: folder /nowhere is not there"},
	} {
		got := of(tt.text, nil)
		if tt.want == "" {
			wantNone(t, tt.name, got)
		} else {
			wantFault(t, got, tt.want)
		}
	}
	// HAProxy keeps a socket that it has over a reload, whatever became of the folder.
	text := "global\n stats socket /nowhere/at/all/a.sock level admin\n"
	wantNone(t, "HAProxy's own socket", of(text, haproxycfg.Binds(lines(text))))
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.cfg", "a.cfg", ".c.cfg", "d.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := Files([]string{"haproxy", "-c", "-f", "/etc/../etc/x.cfg", "-f", dir, "-q", "-f", "{{.Staged}}"})
	if want := []string{"/etc/x.cfg", filepath.Join(dir, "a.cfg"), filepath.Join(dir, "b.cfg"), "{{.Staged}}"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
