package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Placeholders for fields that the library would otherwise fill from CONSUL_*
// variables. The guard takes them out of every request again.
const (
	noToken  = "pgsteer-without-token"
	noTenant = "pgsteer-without-tenant"
)

// guard removes the placeholders. A Consul that is no Enterprise answers 400 to
// any namespace, so there is no harmless value to send instead.
type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if req.Header.Get("X-Consul-Token") == noToken {
		req.Header.Del("X-Consul-Token")
	}
	q := req.URL.Query()
	for _, key := range []string{"ns", "partition"} {
		if q.Get(key) == noTenant {
			q.Del(key)
		}
	}
	req.URL.RawQuery = q.Encode()
	return g.next.RoundTrip(req)
}

// CloseIdleConnections passes the wish on, as http.Client expects.
func (g guard) CloseIdleConnections() {
	if c, ok := g.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// transport is an http.Transport that is replaced when a TLS file changes.
// Requests under way keep the one they began with.
type transport struct {
	ep    endpoint
	o     ClientOptions
	log   *slog.Logger
	files []*watchedFile

	mu      sync.Mutex // guards everything below, and files
	current *http.Transport
}

func newTransport(ep endpoint, o ClientOptions) (*transport, error) {
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("a client certificate needs both its certificate file and its key file")
	}
	t := &transport{ep: ep, o: o, log: o.Logger}
	for _, path := range []string{o.CAFile, o.CertFile, o.KeyFile} {
		if path != "" {
			f := &watchedFile{path: path}
			f.changed()
			t.files = append(t.files, f)
		}
	}
	var err error
	t.current, err = t.build()
	return t, err
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.pick().RoundTrip(req)
}

// CloseIdleConnections drops the idle connections of the present transport.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.CloseIdleConnections()
}

// pick returns the transport for the next request. A changed file that cannot
// be used leaves the transport as it is until the file changes again.
func (t *transport) pick() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for _, f := range t.files {
		changed = f.changed() || changed
	}
	if !changed {
		return t.current
	}
	next, err := t.build()
	if err != nil {
		t.log.Warn("changed TLS files for Consul cannot be used, the old ones stay until the next change", "err", err)
		return t.current
	}
	t.current.CloseIdleConnections()
	t.current = next
	t.log.Info("TLS files for Consul were read again")
	return t.current
}

func (t *transport) build() (*http.Transport, error) {
	d := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAlive, Interval: keepAliveTry, Count: keepAliveMax,
	}}
	tr := &http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: dialTimeout,
		// Each blocking query occupies one connection; the reads between them
		// should find an idle one. Consul refuses the 201st connection of a host,
		// and others on this one need some too, so a read rather waits for its turn.
		MaxConnsPerHost: maxConns, MaxIdleConns: maxConns, MaxIdleConnsPerHost: maxConns, IdleConnTimeout: 90 * time.Second,
	}
	if t.ep.socket != "" {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", t.ep.socket)
		}
	}
	if !t.ep.tls {
		return tr, nil
	}
	var err error
	tr.TLSClientConfig, err = t.tlsConfig()
	return tr, err
}

func (t *transport) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.o.ServerName}
	if t.o.CAFile != "" {
		pem, err := os.ReadFile(t.o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s holds no PEM certificate", t.o.CAFile)
		}
	}
	if t.o.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.o.CertFile, t.o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("loading client certificate %s with key %s: %w", t.o.CertFile, t.o.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
