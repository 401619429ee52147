package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/templates/render"
	"github.com/pgsteer/pgsteer/xds"
)

// running says where the running agent's status listener is.
type running struct {
	Address string `default:"127.0.0.1:7433" placeholder:"HOST:PORT" help:"Status listener of the running agent (${default})."`
}

// get asks the agent and decodes its JSON answer.
func (r running) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	target := (&url.URL{Scheme: "http", Host: r.Address, Path: path}).String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("ask the agent at %s: %w", r.Address, err)
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		return fmt.Errorf("ask the agent at %s: %w; is it running, and is listen.status that address?", r.Address, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return fmt.Errorf("read the answer of the agent at %s: %w", r.Address, err)
	}
	if res.StatusCode != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(body, &e) == nil && e.Error != "" {
			return errors.New(e.Error)
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
}

// Run prints the state of every cluster.
func (c *statusCmd) Run(ctx context.Context, std streams) error {
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

type renderCmd struct {
	running
	Config string `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file."`
	Group  string `help:"Only this template group."`
	Diff   bool   `help:"Show what would change on disk instead; exit code 2 when something would."`
}

// Run renders with the nodes that the running agent knows.
func (c *renderCmd) Run(ctx context.Context, std streams) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	groups, err := agent.Groups(cfg)
	if err != nil {
		return err
	}
	if groups, err = c.chosen(groups); err != nil {
		return err
	}
	var r status.Report
	if err := c.get(ctx, "/api/v1/status", &r); err != nil {
		return err
	}
	changes := false
	for _, g := range groups {
		changed, err := c.group(std, g, r.Clusters)
		if err != nil {
			return err
		}
		changes = changes || changed
	}
	if c.Diff && changes {
		return exitCode(2)
	}
	return nil
}

// chosen are the groups that were asked for; to find none is an error.
func (c *renderCmd) chosen(groups []apply.Group) ([]apply.Group, error) {
	if len(groups) == 0 {
		return nil, fmt.Errorf("%s has no template group, so there is nothing to render", c.Config)
	}
	var names []string
	for i, g := range groups {
		if c.Group == g.Name {
			return groups[i : i+1], nil
		}
		names = append(names, g.Name)
	}
	if c.Group != "" {
		return nil, fmt.Errorf("%s has no template group %s; there are: %s", c.Config, c.Group, strings.Join(names, " "))
	}
	return groups, nil
}

// group prints one group's texts, or how they differ from what is on disk.
func (c *renderCmd) group(std streams, g apply.Group, clusters []status.ClusterReport) (changed bool, err error) {
	var snaps []*topology.Snapshot
	for _, cl := range clusters {
		if cl.Snapshot != nil && slices.Contains(g.Clusters, cl.Name) {
			snaps = append(snaps, cl.Snapshot)
		}
	}
	if len(snaps) < len(g.Clusters) {
		return false, fmt.Errorf("template group %s: the agent knows %d of its %d clusters yet", g.Name, len(snaps), len(g.Clusters))
	}
	view := render.ViewOf(snaps, g.Settings)
	for _, what := range view.LeftOut {
		fmt.Fprintln(std.err, "left out:", what)
	}
	texts, err := apply.Once(g, view)
	if err != nil {
		return false, err
	}
	if !c.Diff {
		for _, t := range texts {
			if _, err := std.out.Write(t.Bytes); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	d, err := apply.Diff(texts, os.ReadFile)
	if err != nil {
		return false, err
	}
	_, err = io.WriteString(std.out, d)
	return d != "", err
}

type bootstrapCmd struct {
	NodeID   string   `default:"envoy" help:"Envoy's node id (${default})."`
	Cluster  string   `default:"pg-clients" help:"Envoy's node cluster (${default})."`
	Clusters []string `help:"Database clusters this Envoy needs."`
	Server   string   `default:"127.0.0.1:7434" placeholder:"HOST:PORT" help:"The agent's xDS listener (${default})."`
	Admin    string   `default:"127.0.0.1:9901" placeholder:"HOST:PORT" help:"Envoy's admin address (${default})."`
}

// Run prints the bootstrap file.
func (c *bootstrapCmd) Run(std streams) error {
	server, err := topology.ParseAddress(c.Server)
	if err != nil {
		return fmt.Errorf("--server: %w", err)
	}
	admin, err := topology.ParseAddress(c.Admin)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	_, err = io.WriteString(std.out, xds.Bootstrap(xds.BootstrapOptions{
		NodeID: c.NodeID, Cluster: c.Cluster, Clusters: c.Clusters, Server: server, AdminAddress: admin,
	}))
	return err
}
