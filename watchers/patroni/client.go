package patroni

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// What an answer may be at most. A list of a hundred members has 50 kB.
const (
	maxBody   = 1 << 20
	maxHeader = 64 << 10
)

// client puts single questions.
type client struct{ http *http.Client }

// reply is an answer that came whole.
type reply struct {
	status int
	body   []byte
}

func newClient(o Options) *client {
	rt := o.Transport
	if rt == nil {
		rt = newTransport(o.TLS)
	}
	return &client{http: &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// newTransport makes connections that obey the context alone. Patroni closes
// each after its answer; a proxy before it may keep them.
func newTransport(config func(host string) *tls.Config) *http.Transport {
	d := &net.Dialer{}
	if config == nil {
		config = func(host string) *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host} }
	}
	return &http.Transport{
		DialContext: d.DialContext,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			raw, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			conn := tls.Client(raw, config(host))
			if err := conn.HandshakeContext(ctx); err != nil {
				_ = raw.Close()
				return nil, err
			}
			return conn, nil
		},
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
	}
}

// question is what one member is asked, and until when.
type question struct {
	url   string
	limit time.Duration
}

// get puts a question. The trouble says why there is no whole answer.
func (c *client) get(ctx context.Context, q question) (reply, *trouble) {
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url, nil)
	if err != nil {
		return reply{}, &trouble{class: topology.FailContent, err: err}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return reply{}, judgeError(err, q.limit)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= http.StatusMultipleChoices && res.StatusCode < http.StatusBadRequest {
		return reply{}, contentTrouble(fmt.Errorf("status %d, a redirect to %q, which is not followed", res.StatusCode, watchers.Clip(res.Header.Get("Location"))))
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return reply{}, contentTrouble(errors.New("the answer ends in the middle"))
	case err != nil:
		return reply{}, judgeError(err, q.limit)
	case len(body) > maxBody:
		return reply{}, contentTrouble(fmt.Errorf("the answer is larger than %s", topology.Size(maxBody)))
	}
	return reply{status: res.StatusCode, body: body}, nil
}
