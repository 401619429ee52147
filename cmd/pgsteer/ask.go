package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// running says where the running agent's status listener is.
type running struct {
	Address string `default:"127.0.0.1:7433" placeholder:"HOST:PORT" help:"Status listener of the running agent, or the path of its socket (${default})."`
}

func (r running) isSocket() bool { return strings.HasPrefix(r.Address, "/") }

// transport reaches the agent, at a socket whatever the host of a URL.
func (r running) transport() *http.Transport {
	t := new(http.Transport)
	if r.isSocket() {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.Address)
		}
	}
	return t
}

// url is the agent's address with a path.
func (r running) url(path string) string {
	host := r.Address
	if r.isSocket() {
		host = "pgsteer"
	}
	return (&url.URL{Scheme: "http", Host: host, Path: path}).String()
}

// absent explains that the agent was not reached.
func (r running) absent(err error) error {
	key := "listen.status"
	if r.isSocket() {
		key = "listen.socket"
	}
	return fmt.Errorf("ask the agent at %s: %w; is it running, and is %s that address?", r.Address, err, key)
}

// refusal is an answer of the agent that is none to the question.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

// get asks the agent, for five seconds unless ctx has a deadline, and decodes its
// JSON answer.
func (r running) get(ctx context.Context, path string, into any) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(path), nil)
	if err != nil {
		return fmt.Errorf("ask the agent at %s: %w", r.Address, err)
	}
	transport := r.transport()
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return r.absent(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return fmt.Errorf("read the answer of the agent at %s: %w", r.Address, err)
	}
	if res.StatusCode != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(body, &e) == nil && e.Error != "" {
			return &refusal{e.Error}
		}
		return fmt.Errorf("the agent at %s answers %s to %s", r.Address, res.Status, path)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer of the agent at %s is no JSON: %w", r.Address, err)
	}
	return nil
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
			return fmt.Errorf("%q is not CLUSTER/NODE, such as main/n1, nor a node's name alone; the agent was not asked", c.Node)
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
