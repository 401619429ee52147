package watchers

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// transportClasses sorts what can go wrong below HTTP; the first that fits counts.
var transportClasses = []struct {
	class topology.FailureClass
	is    func(error) bool
}{
	{topology.FailTimeout, isTimeout},
	{topology.FailName, isA[*net.DNSError]},
	{topology.FailLocal, oneOf(syscall.EMFILE, syscall.ENFILE)},
	{topology.FailTLS, isTLS},
	{topology.FailRefused, oneOf(syscall.ECONNREFUSED)},
	{topology.FailUnreachable, oneOf(syscall.EHOSTUNREACH, syscall.ENETUNREACH)},
	{topology.FailReset, oneOf(syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF)},
}

// TransportClass sorts the error of an HTTP request that had no answer. An error
// of any other kind has no class, "".
func TransportClass(err error) topology.FailureClass {
	for _, row := range transportClasses {
		if row.is(err) {
			return row.class
		}
	}
	return ""
}

func oneOf(targets ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout() && !isA[*net.DNSError](err)
}

func isTLS(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "remote error" || op.Op == "local error") {
		return true // the words of crypto/tls for an alert
	}
	return isA[*tls.CertificateVerificationError](err) || isA[tls.RecordHeaderError](err) || errors.Is(err, http.ErrSchemeMismatch)
}
