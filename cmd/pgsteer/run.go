package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
)

// source is where the configuration comes from: a file or flags.
type source struct {
	Config string   `short:"c" type:"path" placeholder:"FILE" xor:"source" help:"Configuration file."`
	Node   []string `placeholder:"NAME=HOST:PORT" xor:"source" help:"A node of the cluster main, instead of a file; repeat it for each node."`
}

func (s source) load() (*config.Config, error) {
	switch {
	case s.Config != "":
		return config.Load(s.Config)
	case len(s.Node) > 0:
		cfg, err := config.FromNodes(s.Node)
		if err != nil {
			return nil, misused("%w", err)
		}
		return cfg, nil
	}
	return nil, misused("say what to watch: a configuration file with -c, or nodes with --node a=10.0.0.1:5432")
}

type runCmd struct {
	source
	User         string `placeholder:"ROLE" help:"Role to probe --node nodes as (pgsteer)."`
	PasswordFile string `type:"path" placeholder:"FILE" help:"File with that role's password, for --node."`
	StateDir     string `type:"path" placeholder:"DIR" help:"Folder of the saved state, instead of the configuration's."`
	LogLevel     string `enum:"debug,info,warn,error," default:"" placeholder:"LEVEL" help:"Log level, instead of the configuration's (debug, info, warn, error)."`
}

// load reads the configuration and lets flags overrule it.
func (c *runCmd) load() (*config.Config, error) {
	cfg, err := c.source.load()
	if err != nil {
		return nil, err
	}
	if c.StateDir != "" {
		cfg.StateDir = c.StateDir
	}
	if c.LogLevel != "" {
		cfg.Log.Level = config.LogLevel(c.LogLevel)
	}
	switch {
	case c.Config == "":
		return cfg, cfg.SetProbeRole(cmp.Or(c.User, "pgsteer"), c.PasswordFile)
	case c.User != "" || c.PasswordFile != "":
		return nil, misused("--user and --password-file go with --node; in a file, postgres.user and postgres.password_file say the same")
	}
	return cfg, nil
}

// Run runs the agent until SIGTERM or SIGINT. SIGHUP and a change of the file
// reload the configuration.
func (c *runCmd) Run(ctx context.Context, std streams) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // before anything else: without it SIGHUP ends the process
	defer signal.Stop(hup)
	cfg, err := c.load()
	if err != nil {
		return notStarted(err)
	}
	level := new(slog.LevelVar)
	log := newLogger(std.err, cfg.Log.Format, level)
	a, err := agent.New(agent.Options{Load: c.load, Logger: log, Level: level, Version: version(), File: c.Config})
	if err != nil {
		return notStarted(err)
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				_ = a.Reload(ctx) // it logs its own outcome
			}
		}
	}()
	return a.Run(ctx)
}

func notStarted(err error) error { return fmt.Errorf("%w; the agent was not started", err) }

type validateCmd struct {
	Config string `arg:"" type:"path" help:"Configuration file."`
}

// Run reads the file and prints what it configures, or every fault.
func (c *validateCmd) Run(std streams) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	if err := agent.Check(cfg); err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s is good; clusters: %d, template groups: %d\n", c.Config, len(cfg.Clusters), len(cfg.Templates))
	return err
}
