package watchers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestTransportClass: what proves what, below HTTP; wrapped as net/http wraps it.
func TestTransportClass(t *testing.T) {
	dial := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
	}
	for _, c := range []struct {
		err  error
		want topology.FailureClass
	}{
		{context.DeadlineExceeded, topology.FailTimeout},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, topology.FailTimeout},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, topology.FailName},
		{&net.DNSError{Err: "i/o timeout", IsTimeout: true}, topology.FailName},
		{dial(syscall.EMFILE), topology.FailLocal},
		{dial(syscall.ECONNREFUSED), topology.FailRefused},
		{dial(syscall.EHOSTUNREACH), topology.FailUnreachable},
		{dial(syscall.ECONNRESET), topology.FailReset},
		{io.ErrUnexpectedEOF, topology.FailReset},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, topology.FailTLS},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, topology.FailTLS},
		{errors.New("something else"), ""},
	} {
		if got := TransportClass(fmt.Errorf("get: %w", c.err)); got != c.want {
			t.Errorf("%v is %q, want %q", c.err, got, c.want)
		}
	}
}
