package patroni

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/pgsteer/pgsteer/watchers"
)

// SwitchoverRequest asks a Patroni for a planned switchover.
type SwitchoverRequest struct {
	// URLs are the REST interfaces of members, http://host:port; each is asked only
	// when nobody listens at those before it.
	URLs []string
	// TLS makes the TLS configuration for a host; nil: the system's.
	TLS func(host string) *tls.Config
	// Authorization is the header of that name, "" for none.
	Authorization string
	// Leader is who leads now, Candidate who should, "" for Patroni's choice.
	Leader, Candidate string
}

// Switchover asks, and returns when Patroni has answered: nil once another member has
// the leader key. Patroni answers after the fact, so ctx should give it a minute.
func Switchover(ctx context.Context, q SwitchoverRequest) error {
	text, err := json.Marshal(struct {
		Leader    string `json:"leader"`
		Candidate string `json:"candidate,omitempty"`
	}{q.Leader, q.Candidate})
	if err != nil {
		return err
	}
	transport := newTransport(q.TLS)
	defer transport.CloseIdleConnections()
	c := newClient(Options{Transport: transport})
	err = errors.New("no member is known")
	for _, url := range q.URLs {
		if err = c.switchover(ctx, url, q.Authorization, text); !nobody(err) {
			return err
		}
	}
	return err
}

// nobody reports whether a request reached no Patroni, so that it may be put to another.
func nobody(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func (c *client) switchover(ctx context.Context, url, auth string, text []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/switchover", bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask Patroni: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxBody)) // the status says it all
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the Patroni at %s answers %d: %s", url, res.StatusCode, watchers.Clip(string(body)))
	}
	return nil
}
