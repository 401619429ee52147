package postgres

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// errNoCancel answers pgconn's wish to send a cancel request. For a backend
// that is gone PostgreSQL logs such a request, and for one that hangs it helps
// nobody.
var errNoCancel = errors.New("cancel requests are not sent")

// The SQLSTATEs with a class of their own. The texts of 57P03 are translated by
// the server, so only the code counts (eligibility 22).
func classOfState(code string) topology.FailureClass {
	switch {
	case code == "53300":
		return topology.FailSlots
	case code == "57P03":
		return topology.FailStarting
	case code == "57P01", code == "57P02":
		return topology.FailShutdown
	case code == "57P05": // idle_session_timeout
		return topology.FailLost
	case code == "3D000":
		return topology.FailDatabase
	case strings.HasPrefix(code, "28"), code == "42501": // no CONNECT privilege
		return topology.FailAuth
	}
	return topology.FailProtocol
}

// classOf sorts an error of a connection attempt. A name may have several
// addresses, and err then joins the errors of all of them; the class is that of
// the weakest evidence, since one refusing address proves nothing while another
// is silent.
func classOf(err error) topology.FailureClass {
	var state *pgconn.PgError
	var dns *net.DNSError
	switch {
	case errors.As(err, &state):
		return classOfState(state.Code)
	case isLocal(err):
		return topology.FailLocal
	case errors.As(err, &dns):
		return topology.FailName
	case isTimeout(err):
		return topology.FailTimeout
	case isAny(err, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN):
		return topology.FailUnreachable
	case isTLS(err):
		return topology.FailTLS
	case isAny(err, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF):
		return topology.FailReset
	case isAny(err, syscall.ECONNREFUSED):
		return topology.FailRefused
	}
	return topology.FailProtocol
}

// classOfLoss sorts an error on the kept session: an end of the connection
// proves nothing yet, the next attempt does.
func classOfLoss(err error) topology.FailureClass {
	if errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) {
		return topology.FailLost
	}
	var state *pgconn.PgError
	if errors.As(err, &state) && state.Code == "42501" {
		return topology.FailProtocol // a right was taken away; the next session asks for less
	}
	switch c := classOf(err); c {
	case topology.FailReset, topology.FailRefused, topology.FailTLS, topology.FailUnreachable:
		return topology.FailLost
	default:
		return c
	}
}

// isLocal reports trouble of our own machine: it proves nothing of the server.
func isLocal(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.EADDRNOTAVAIL, syscall.ENETDOWN, syscall.EPERM, syscall.EACCES)
}

func isTimeout(err error) bool {
	var n net.Error
	return pgconn.Timeout(err) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ETIMEDOUT) || errors.As(err, &n) && n.Timeout()
}

func isTLS(err error) bool {
	var header tls.RecordHeaderError
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var host x509.HostnameError
	return errors.As(err, &header) || errors.As(err, &alert) || errors.As(err, &verify) ||
		errors.As(err, &host) || strings.Contains(err.Error(), noTLS)
}

// noTLS is pgconn's word for a server that does not offer TLS. Its "tls error"
// alone says only when a connection ended: a server that dies while it is asked
// for TLS refuses, and must not be left alone for a minute as one with a wrong
// certificate.
const noTLS = "server refused TLS connection"

// withoutOffer leaves out the attempts that ended because the server does not
// offer TLS, if there was another one: where a login may go on without, those
// say nothing, and the one that went on decides.
func withoutOffer(err error) error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return err
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		if !strings.Contains(e.Error(), noTLS) {
			rest = append(rest, e)
		}
	}
	if len(rest) == 0 {
		return err
	}
	return errors.Join(rest...)
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// plain returns an error's text on one line, without pgconn's own preface. Of
// several ways that were tried (with TLS and without) the server's own words
// count, where there are any; what failed alike is said once.
func plain(err error) string {
	var c *pgconn.ConnectError
	if errors.As(err, &c) && c.Unwrap() != nil {
		err = c.Unwrap()
	}
	tried := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		tried = several.Unwrap()
	}
	isServers := func(err error) bool { _, ok := errors.AsType[*pgconn.PgError](err); return ok }
	if slices.ContainsFunc(tried, isServers) {
		tried = slices.DeleteFunc(slices.Clone(tried), func(err error) bool { return !isServers(err) })
	}
	var texts []string
	for _, t := range tried {
		if text := strings.Join(strings.Fields(t.Error()), " "); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}
