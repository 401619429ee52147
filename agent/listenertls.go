package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
)

// lookEvery is how often the files of a listener's TLS are looked at.
const lookEvery = 2 * time.Second

// listenerTLS is the TLS of a listener, by files that may be replaced at any time.
// A changed certificate is used from the next connection on; files that cannot be
// used change nothing. Files are never read for a connection: a disk that hangs
// must not keep the answer from a health check.
type listenerTLS struct {
	protos []string // of the application, for ALPN
	pair   *rotating[*tls.Certificate]
	roots  *rotating[*x509.CertPool] // nil: clients need no certificate
	demand tls.ClientAuthType        // of clients, with roots

	now atomic.Pointer[tls.Config]
	// What now was made of; only look touches them.
	madeOf      *tls.Certificate
	madeOfRoots *x509.CertPool
}

// newListenerTLS reads the files for the first time; here a fault is an error.
// Protos are what is spoken over it.
func newListenerTLS(l config.TLSListener, log *slog.Logger, protos ...string) (*listenerTLS, error) {
	return newListenerTLSFor(l, log, tls.RequireAndVerifyClientCert, protos...)
}

// newListenerTLSFor is newListenerTLS with another demand on clients where the
// listener names who signs their certificates.
func newListenerTLSFor(l config.TLSListener, log *slog.Logger, demand tls.ClientAuthType, protos ...string) (*listenerTLS, error) {
	t := &listenerTLS{protos: protos, demand: demand}
	var err error
	if t.pair, err = newRotating(log, parsePair, l.CertFile, l.KeyFile); err != nil {
		return nil, fmt.Errorf("cert_file with key_file %s: %w", l.KeyFile, err)
	}
	if l.ClientCAFile != "" {
		if t.roots, err = newRotating(log, parseRoots, l.ClientCAFile); err != nil {
			return nil, fmt.Errorf("client_ca_file: %w", err)
		}
	}
	t.look()
	return t, nil
}

// look reads the files and takes what changed. Without a change the old one stays,
// since it has the keys by which clients resume their sessions.
func (t *listenerTLS) look() {
	pair, roots := t.pair.get(), (*x509.CertPool)(nil)
	if t.roots != nil {
		roots = t.roots.get()
	}
	if pair == t.madeOf && roots == t.madeOfRoots {
		return
	}
	t.madeOf, t.madeOfRoots = pair, roots
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: t.protos, Certificates: []tls.Certificate{*pair}}
	if roots != nil {
		c.ClientCAs, c.ClientAuth = roots, t.demand
	}
	t.now.Store(c)
}

// follow looks at the files at every tick until ctx ends.
func (t *listenerTLS) follow(ctx context.Context, tick *time.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.look()
		}
	}
}

// beside looks at the files for as long as a server runs.
func (t *listenerTLS) beside(serve func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { t.follow(ctx, time.NewTicker(lookEvery)) })
		defer wg.Wait()
		defer cancel()
		return serve(ctx)
	}
}

// config is what a server is given.
func (t *listenerTLS) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.now.Load(), nil },
	}
}

// expires is when the certificate ends, in seconds since 1970.
func (t *listenerTLS) expires() uint64 {
	leaf := t.now.Load().Certificates[0].Leaf
	if leaf == nil {
		return 0
	}
	return uint64(max(leaf.NotAfter.Unix(), 0))
}
