package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// running says where the running agent's status listener is.
type running struct {
	Address string `default:"127.0.0.1:7433" placeholder:"HOST:PORT" help:"Status listener of the running agent, or the path of its socket (${default})."`
	CAFile  string `name:"ca-file" placeholder:"FILE" help:"Ask over TLS, at listen.status_tls: certificates that the agent's must be signed by."`
	Cert    string `name:"cert-file" placeholder:"FILE" help:"With --ca-file: one's own certificate."`
	Key     string `name:"key-file" placeholder:"FILE" help:"Its key."`

	// Silence is how long the agent may say nothing while one waits; zero: silentMost.
	Silence time.Duration `kong:"-"`
}

// Validate refuses what would be left out of sight: without --ca-file there is no TLS,
// and a token would be sent in the clear.
func (r running) Validate() error {
	switch {
	case r.CAFile == "" && r.Cert+r.Key != "":
		return errors.New("--cert-file and --key-file need --ca-file beside them: without it the agent is asked without TLS; it was not asked")
	case (r.Cert == "") != (r.Key == ""):
		return errors.New("--cert-file and --key-file need each other; the agent was not asked")
	}
	return nil
}

// question is a request to the agent.
type question struct {
	method, path string // empty method: GET
	body         string
	token        string // sent along; empty: none
}

func (r running) isSocket() bool { return strings.Contains(r.Address, "/") }

// transport reaches the agent, at a socket whatever the host of a URL.
func (r running) transport() *http.Transport {
	t := new(http.Transport)
	if r.isSocket() {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.Address)
		}
	}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := r.tls()
		if err != nil {
			return nil, unusable{err}
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, network, address)
	}
	return t
}

// tls is how the agent is asked over TLS.
func (r running) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	text, err := os.ReadFile(r.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca-file: there is no certificate in %s", r.CAFile)
	}
	if r.Cert != "" {
		own, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert-file %s with --key-file %s: %w", r.Cert, r.Key, err)
		}
		// Shown whomever the agent says it trusts: one that is left out tells nobody why.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return c, nil
}

// url is the agent's address with a path.
func (r running) url(path string) string {
	scheme, host := "http", r.Address
	if r.isSocket() {
		host = "pgsteer"
	}
	if r.CAFile != "" {
		scheme = "https"
	}
	path, query, _ := strings.Cut(path, "?")
	return (&url.URL{Scheme: scheme, Host: host, Path: path, RawQuery: query}).String()
}

// unusable is a fault of one's own files for TLS: nobody was asked.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// absent explains that the agent was not reached, or by which files it was not
// trusted, or did not trust.
func (r running) absent(err error) error {
	var alert *net.OpError
	if own, is := errors.AsType[unusable](err); is {
		return fmt.Errorf("%w; the agent was not asked", own)
	} else if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return fmt.Errorf("ask the agent at %s: its certificate is not one that --ca-file %s signs: %w", r.Address, r.CAFile, err)
	} else if errors.As(err, &alert) && alert.Op == "remote error" && r.Cert != "" {
		return fmt.Errorf("ask the agent at %s: it refuses --cert-file %s: %w; is it signed by client_ca_file of listen.status_tls, and valid now?", r.Address, r.Cert, err)
	}
	hint := "listen.status that address"
	if r.CAFile != "" {
		hint = "listen.status_tls that address"
	}
	if r.isSocket() {
		hint = "listen.socket that path (without one: --address 127.0.0.1:7433)"
	}
	return fmt.Errorf("ask the agent at %s: %w; is it running, and is %s?", r.Address, err, hint)
}

// refusal is why the agent, which was reached, does not answer a question.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

// tooOften says that the agent is asked more often than it answers.
type tooOften struct {
	refusal
	after time.Duration // when it wants to be asked again; zero: it does not say
}

func (e *tooOften) Unwrap() error { return &e.refusal }

// retryAfter reads the header of that name, seconds or a date; zero: there is none that
// can be read.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// get asks the agent as body does, and decodes its JSON answer.
func (r running) get(ctx context.Context, path string, into any) error {
	body, err := r.body(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer of the agent at %s is no JSON: %w", r.Address, err)
	}
	return nil
}

// body asks the agent as send does.
func (r running) body(ctx context.Context, path string) ([]byte, error) {
	return r.send(ctx, question{path: path})
}

// send asks the agent, for five seconds unless ctx has a deadline.
func (r running) send(ctx context.Context, q question) ([]byte, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, r.url(q.path), strings.NewReader(q.body))
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", r.Address, err)
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	transport := r.transport()
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, r.absent(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return nil, fmt.Errorf("read the answer of the agent at %s: %w", r.Address, err)
	}
	if res.StatusCode != http.StatusOK {
		if res.StatusCode == http.StatusUnauthorized {
			return nil, &refusal{fmt.Sprintf("the agent at %s wants a valid token: name its file with --token-file or $PGSTEER_TOKEN_FILE (over TLS a certificate may stand for it)", r.Address)}
		}
		text := fmt.Sprintf("the agent at %s answers %s to %s", r.Address, res.Status, q.path)
		var e struct{ Error string }
		said := json.Unmarshal(body, &e) == nil && e.Error != ""
		if said {
			text = e.Error
		}
		switch {
		case res.StatusCode == http.StatusTooManyRequests:
			return nil, &tooOften{refusal{text}, retryAfter(res.Header.Get("Retry-After"), time.Now())}
		case said:
			return nil, &refusal{text}
		}
		return nil, errors.New(text)
	}
	return body, nil
}

// output is the form of an answer.
type output struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Form of the answer: text or json."`
}

func (o output) json(std streams, v any) error {
	e := json.NewEncoder(std.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

type statusCmd struct {
	running
	output
	XDS bool `name:"xds" help:"Show the Envoys instead: what each was sent, and what it refused."`
}

// Run prints the state of every cluster.
func (c *statusCmd) Run(ctx context.Context, std streams) error {
	if c.XDS {
		return c.envoys(ctx, std)
	}
	var r status.Report
	if err := c.get(ctx, "/api/v1/status", &r); err != nil {
		return err
	}
	if c.Output == "json" {
		return c.json(std, r)
	}
	status.WriteStatus(std.out, r)
	return nil
}

type explainCmd struct {
	running
	output
	Node string `arg:"" placeholder:"[CLUSTER/]NODE" help:"The node, such as main/n1; n1 alone when one cluster has a node of that name."`
}

// Run prints why a node has its verdicts.
func (c *explainCmd) Run(ctx context.Context, std streams) error {
	for i, name := range strings.Split(c.Node, "/") {
		if err := topology.CheckName(name); err != nil || i > 1 {
			return misused("%q is not CLUSTER/NODE, such as main/n1, nor a node's name alone; the agent was not asked", c.Node)
		}
	}
	var e status.Explanation
	if err := c.get(ctx, "/api/v1/explain/"+c.Node, &e); err != nil {
		return err
	}
	if c.Output == "json" {
		return c.json(std, e)
	}
	_, err := io.WriteString(std.out, e.Text)
	return err
}
