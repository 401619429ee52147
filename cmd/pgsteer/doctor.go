package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/consulinit"
	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

type doctorCmd struct {
	Config  string   `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file."`
	Address string   `placeholder:"HOST:PORT" help:"Status listener of the running agent, or the path of its socket, instead of the configuration's."`
	HAProxy []string `name:"haproxy-file" type:"path" placeholder:"FILE" help:"A file of HAProxy's to look at too; those of the templates are known."`
	ACL     bool     `name:"acl" help:"Print instead what tokens need at a Consul with ACLs: a policy for each job that the configuration gives pgsteer."`
	output
}

// Run looks at everything and prints what it found; exit code 1 when something
// that is configured cannot work.
func (c *doctorCmd) Run(ctx context.Context, std streams) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	if c.ACL {
		return c.policies(std, cfg)
	}
	if err := agent.Check(cfg); err != nil {
		return err
	}
	o, err := agent.Doctor(cfg, agent.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	o.HAProxyFiles = c.HAProxy
	o.Output = func(ctx context.Context, name string, args ...string) (string, error) {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.WaitDelay = &out, time.Second
		err := cmd.Run()
		return out.String(), err
	}
	o.Agent = func(ctx context.Context) *doctor.Agent { return c.agent(ctx, cfg) }
	results := doctor.Run(ctx, o)
	if c.Output == "json" {
		err = c.json(std, results)
	} else {
		err = doctor.Write(std.out, results)
	}
	if err == nil && doctor.Worst(results) == doctor.Fail {
		err = exitCode(1)
	}
	return err
}

// policies prints each job's, in the form of consul acl policy create -rules.
func (c *doctorCmd) policies(std streams, cfg *config.Config) error {
	all := consulinit.Policies(cfg)
	if c.Output == "json" {
		rules := make(map[string]string)
		for _, p := range all {
			rules[p.Job] = p.Rules()
		}
		return c.json(std, rules)
	}
	if len(all) == 0 {
		fmt.Fprintln(std.err, "nothing in the configuration needs Consul")
	}
	if ns, part := cfg.Consul.Namespace, cfg.Consul.Partition; len(all) > 0 && ns+part != "" {
		fmt.Fprintf(std.out, "# Policies belong into namespace %s of partition %s.\n", cmp.Or(ns, "default"), cmp.Or(part, "default"))
	}
	for i, p := range all {
		between := ""
		if i > 0 {
			between = "\n"
		}
		if _, err := fmt.Fprintf(std.out, "%s# %s: %s\n%s", between, p.Job, p.Doc, p.Rules()); err != nil {
			return err
		}
	}
	return nil
}

// agent asks the running agent, nil when there is none.
func (c *doctorCmd) agent(ctx context.Context, cfg *config.Config) *doctor.Agent {
	places := []string{c.Address}
	if c.Address == "" {
		places = []string{cfg.Listen.Socket, config.DefaultSocket, string(cfg.Listen.Status)}
	}
	var r status.Report
	var silent error
	for _, at := range places {
		if at == "" || at == config.SocketOff {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, time.Second)
		err := (running{Address: at}).get(asked, "/api/v1/status", &r)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			silent = err
		}
		if err != nil {
			continue
		}
		a := agentOf(r)
		a.Files, a.FileLimit = descriptors(ctx, running{Address: at})
		return a
	}
	if silent != nil {
		return &doctor.Agent{Silent: silent}
	}
	return nil
}

// agentOf is what a report says of its agent. A sink that waits for nodes to be known
// is in no trouble; a template's that is held, refused or tried again is.
func agentOf(r status.Report) *doctor.Agent {
	a := &doctor.Agent{
		Version: r.Agent.Version, ConfigError: r.Agent.ConfigError, Listeners: r.Agent.Listeners,
		Failing: make(map[string]string), Nodes: make(map[string][]topology.Node),
	}
	for _, s := range r.Sinks {
		if s.Error != "" && s.State != status.SinkWaiting {
			a.Failing[s.Name] = s.Error
		}
	}
	for _, cl := range r.Clusters {
		for _, s := range cl.Sources {
			if s.Error != "" {
				a.Failing["cluster "+cl.Name+", source "+s.Source] = s.Error
			}
		}
		if cl.Snapshot != nil {
			a.Nodes[cl.Name] = cl.Snapshot.Nodes
		}
	}
	return a
}

// descriptors asks an agent's metrics how many it has open, and may have; zero: they
// do not say.
func descriptors(ctx context.Context, r running) (open, limit uint64) {
	text, err := r.body(ctx, "/metrics")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil || n < 0:
		case name == "process_open_fds":
			open = uint64(n)
		case name == "process_max_fds":
			limit = uint64(n)
		}
	}
	return open, limit
}
