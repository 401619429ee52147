package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
)

// planStatusTLS is the status listener with TLS; other files of it need another one.
func (a *Agent) planStatusTLS(l config.TLSListener) plan {
	return plan{
		name: partStatusTLS, made: fmt.Sprintf("%#v", l), listens: true,
		make:  func() (*part, error) { return a.buildStatusTLS(l) },
		check: func() error { _, err := a.statusTLS(l); return err },
	}
}

// statusTLS lets clients in without a certificate, who may have a token, and refuses
// one that does not hold.
func (a *Agent) statusTLS(l config.TLSListener) (*listenerTLS, error) {
	return newListenerTLSFor(l, a.log.With("component", partStatusTLS), tls.VerifyClientCertIfGiven, "http/1.1")
}

func (a *Agent) buildStatusTLS(l config.TLSListener) (*part, error) {
	secure, err := a.statusTLS(l)
	if err != nil {
		return nil, err
	}
	srv := a.statusServer()
	p, err := a.served(partStatusTLS, l.Address, func(ctx context.Context, ln net.Listener) error {
		return srv.Serve(ctx, tls.NewListener(ln, secure.config()))
	})
	if err != nil {
		return nil, err
	}
	p.run = secure.beside(p.run)
	p.status = func() []status.Sink {
		return []status.Sink{{Name: partStatusTLS, State: status.SinkOK, Gauges: map[string]uint64{"certificate_expires_timestamp_seconds": secure.expires()}}}
	}
	return p, nil
}
