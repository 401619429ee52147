package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

type doctorCmd struct {
	Config  string   `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file."`
	Address string   `placeholder:"HOST:PORT" help:"Status listener of the running agent, or the path of its socket, instead of the configuration's."`
	HAProxy []string `name:"haproxy-file" type:"path" placeholder:"FILE" help:"A file of HAProxy's to look at too; those of the templates are known."`
	output
}

// Run looks at everything and prints what it found; exit code 1 when something
// that is configured cannot work.
func (c *doctorCmd) Run(ctx context.Context, std streams) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
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
		err := (running{at}).get(asked, "/api/v1/status", &r)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			silent = err
		}
		if err != nil {
			continue
		}
		a := &doctor.Agent{
			Version: r.Agent.Version, ConfigError: r.Agent.ConfigError, Listeners: r.Agent.Listeners,
			Failing: make(map[string]string), Nodes: make(map[string][]topology.Node),
		}
		a.Files, a.FileLimit = descriptors(ctx, running{at})
		for _, s := range r.Sinks {
			if s.State == status.SinkFailing {
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
	if silent != nil {
		return &doctor.Agent{Silent: silent}
	}
	return nil
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
