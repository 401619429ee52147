package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func sys(e syscall.Errno) error {
	return fmt.Errorf("dial error: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", e)})
}

type classTest struct {
	name string
	err  error
	want topology.FailureClass // of a connection attempt
	lost topology.FailureClass // of a question on the kept session
}

func classTests() []classTest {
	state := func(code string) error { return fmt.Errorf("server error: %w", &pgconn.PgError{Code: code}) }
	return []classTest{
		{"refused", sys(syscall.ECONNREFUSED), topology.FailRefused, topology.FailLost},
		{"reset", sys(syscall.ECONNRESET), topology.FailReset, topology.FailLost},
		{"broken pipe", sys(syscall.EPIPE), topology.FailReset, topology.FailLost},
		{"end", io.EOF, topology.FailReset, topology.FailLost},
		{"end within a message", io.ErrUnexpectedEOF, topology.FailReset, topology.FailLost},
		{"closed by pgconn", pgconn.ErrConnClosed, topology.FailProtocol, topology.FailLost},
		{"deadline", os.ErrDeadlineExceeded, topology.FailTimeout, topology.FailTimeout},
		{"context", context.DeadlineExceeded, topology.FailTimeout, topology.FailTimeout},
		{"TCP gave up", sys(syscall.ETIMEDOUT), topology.FailTimeout, topology.FailTimeout},
		{"no route", sys(syscall.EHOSTUNREACH), topology.FailUnreachable, topology.FailLost},
		{"no network", sys(syscall.ENETUNREACH), topology.FailUnreachable, topology.FailLost},
		{"no such name", &net.DNSError{IsNotFound: true}, topology.FailName, topology.FailName},
		{"resolver silent", &net.DNSError{IsTimeout: true}, topology.FailName, topology.FailName},
		{"no descriptors", sys(syscall.EMFILE), topology.FailLocal, topology.FailLocal},
		{"no descriptors at all", sys(syscall.ENFILE), topology.FailLocal, topology.FailLocal},
		{"no buffers", sys(syscall.ENOBUFS), topology.FailLocal, topology.FailLocal},
		{"no ports", sys(syscall.EADDRNOTAVAIL), topology.FailLocal, topology.FailLocal},
		{"own firewall", sys(syscall.EPERM), topology.FailLocal, topology.FailLocal},
		{"TLS alert", tls.AlertError(40), topology.FailTLS, topology.FailLost},
		{"certificate", &tls.CertificateVerificationError{Err: errors.New("x")}, topology.FailTLS, topology.FailLost},
		{"no TLS", errors.New("tls error: server refused TLS connection"), topology.FailTLS, topology.FailLost},
		{"TLS timeout", fmt.Errorf("tls error: %w", os.ErrDeadlineExceeded), topology.FailTimeout, topology.FailTimeout},
		{"end while asked for TLS", fmt.Errorf("tls error: %w", io.EOF), topology.FailReset, topology.FailLost},
		{"reset while asked for TLS", fmt.Errorf("tls error: %w", sys(syscall.ECONNRESET)), topology.FailReset, topology.FailLost},
		{"53300", state("53300"), topology.FailSlots, topology.FailSlots},
		{"57P01", state("57P01"), topology.FailShutdown, topology.FailShutdown},
		{"57P02", state("57P02"), topology.FailShutdown, topology.FailShutdown},
		{"57P03", state("57P03"), topology.FailStarting, topology.FailStarting},
		{"57P05", state("57P05"), topology.FailLost, topology.FailLost},
		{"28000", state("28000"), topology.FailAuth, topology.FailAuth},
		{"28P01", state("28P01"), topology.FailAuth, topology.FailAuth},
		{"3D000", state("3D000"), topology.FailDatabase, topology.FailDatabase},
		{"42501", state("42501"), topology.FailAuth, topology.FailProtocol},
		{"XX000", state("XX000"), topology.FailProtocol, topology.FailProtocol},
		{"nonsense", errors.New("received unexpected message"), topology.FailProtocol, topology.FailProtocol},
		// A name with two addresses: the weaker evidence counts.
		{"refused and silent", errors.Join(sys(syscall.ECONNREFUSED), os.ErrDeadlineExceeded), topology.FailTimeout, topology.FailTimeout},
		{"refused and no route", errors.Join(sys(syscall.ECONNREFUSED), sys(syscall.ENETUNREACH)), topology.FailUnreachable, topology.FailLost},
		{"refused and full", errors.Join(sys(syscall.ECONNREFUSED), state("53300")), topology.FailSlots, topology.FailSlots},
	}
}

func TestClasses(t *testing.T) {
	for _, c := range classTests() {
		if got := classOf(c.err); got != c.want {
			t.Errorf("%s: a connection attempt is %s, want %s", c.name, got, c.want)
		}
		if got := classOfLoss(c.err); got != c.lost {
			t.Errorf("%s: a question is %s, want %s", c.name, got, c.lost)
		}
	}
}

// With sslmode prefer the attempt without TLS decides, since the one before it
// had to fail at a server without TLS.
func TestClassWithoutTLS(t *testing.T) {
	none := errors.New("tls error: server refused TLS connection")
	state := fmt.Errorf("server error: %w", &pgconn.PgError{Code: "57P03"})
	for _, c := range []struct {
		err  error
		want topology.FailureClass
	}{
		{errors.Join(none, sys(syscall.ECONNRESET)), topology.FailReset},
		{errors.Join(none, io.EOF), topology.FailReset},
		{errors.Join(none, sys(syscall.ECONNREFUSED)), topology.FailRefused},
		{errors.Join(none, os.ErrDeadlineExceeded), topology.FailTimeout},
		{fmt.Errorf("connect: %w", errors.Join(none, state)), topology.FailStarting},
		{errors.Join(tls.AlertError(40), sys(syscall.ECONNRESET)), topology.FailTLS},
		{errors.Join(none, none), topology.FailTLS},
		{none, topology.FailTLS},
	} {
		if got := classOf(withoutOffer(c.err)); got != c.want {
			t.Errorf("%v: class %s, want %s", c.err, got, c.want)
		}
	}
}

func TestTextsAreOneLine(t *testing.T) {
	got := plain(errors.Join(errors.New("one  thing"), errors.New("another")))
	if got != "one thing; another" || strings.Contains(got, "\n") {
		t.Errorf("got %q", got)
	}
}

// What a person reads of an attempt that was made in two ways.
func TestPlain(t *testing.T) {
	tls := errors.New("10.0.0.1:5432 (n1): tls error: server refused TLS connection")
	wrong := fmt.Errorf("10.0.0.1:5432 (n1): server error: %w", &pgconn.PgError{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
	refused := errors.New("10.0.0.1:5432 (n1): dial error:\n connection refused")
	for _, c := range []struct {
		err  error
		want string
	}{
		{refused, "10.0.0.1:5432 (n1): dial error: connection refused"},
		{errors.Join(refused, refused), "10.0.0.1:5432 (n1): dial error: connection refused"},
		{errors.Join(tls, refused), "10.0.0.1:5432 (n1): tls error: server refused TLS connection; 10.0.0.1:5432 (n1): dial error: connection refused"},
		{errors.Join(tls, wrong), wrong.Error()},
	} {
		if got := plain(c.err); got != c.want {
			t.Errorf("plain = %q, want %q", got, c.want)
		}
	}
}
