package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/templates/render"
)

type renderCmd struct {
	running
	Config  string        `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file."`
	Group   string        `help:"Only this template group."`
	Diff    bool          `xor:"do" help:"Show what would change on disk instead; exit code 2 when something would."`
	Check   bool          `xor:"do" help:"Run the groups' check commands on the new files instead, beside the present ones, and change nothing."`
	Once    bool          `xor:"do" help:"Make the files live, once, as a running agent does: check, replace, reload, confirm. Not beside an agent that keeps the same files."`
	Force   bool          `help:"With --once: also beside an agent that has a group of that name."`
	Timeout time.Duration `default:"30s" help:"How long the agent may take to know all nodes, and --once to apply them (${default})."`
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
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	snaps, kept, err := c.nodes(ctx, groups)
	if err != nil {
		return err
	}
	for _, what := range unknownNodes(cfg, snaps) {
		fmt.Fprintln(std.err, "not rendered:", what)
	}
	switch {
	case c.Once && len(kept) > 0 && !c.Force:
		return fmt.Errorf("the agent at %s keeps the files of %s itself, and two would reload in turn; nothing was done (--force does it all the same)",
			c.Address, strings.Join(kept, " "))
	case c.Once:
		return once(ctx, std, groups, snaps)
	case c.Check:
		return check(ctx, std, groups, snaps)
	}
	return c.show(std, groups, snaps)
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

// nodes asks the agent until it knows the nodes of every cluster of the groups;
// kept are those of the groups that it has too.
func (c *renderCmd) nodes(ctx context.Context, groups []apply.Group) (snaps map[string]*topology.Snapshot, kept []string, err error) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		var r status.Report
		if err := c.get(ctx, "/api/v1/status", &r); err != nil {
			return nil, nil, err
		}
		snaps = make(map[string]*topology.Snapshot)
		for _, cl := range r.Clusters {
			if cl.Snapshot != nil && cl.Snapshot.Complete {
				snaps[cl.Name] = cl.Snapshot
			}
		}
		missing := missingOf(groups, snaps)
		if len(missing) == 0 {
			return snaps, keptBy(r.Sinks, groups), nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the agent at %s does not know all nodes yet of: %s; nothing was rendered", c.Address, strings.Join(missing, " "))
		case <-again.C:
		}
	}
}

// keptBy are the groups that an agent with these sinks has too.
func keptBy(sinks []status.Sink, groups []apply.Group) (kept []string) {
	for _, g := range groups {
		if slices.ContainsFunc(sinks, func(s status.Sink) bool { return s.Name == agent.TemplateSink(g.Name) }) {
			kept = append(kept, g.Name)
		}
	}
	return kept
}

// unknownNodes says which nodes a configuration lists that the agent does not
// have, since it runs by another one.
func unknownNodes(cfg *config.Config, snaps map[string]*topology.Snapshot) (all []string) {
	for _, cl := range cfg.Clusters {
		snap := snaps[cl.Name]
		if snap == nil {
			continue
		}
		for _, n := range cl.Nodes {
			if !slices.ContainsFunc(snap.Nodes, func(have topology.Node) bool { return have.Name == n.Name }) {
				all = append(all, "node "+cl.Name+"/"+n.Name+" of the file, which the running agent has not taken")
			}
		}
	}
	return all
}

func missingOf(groups []apply.Group, snaps map[string]*topology.Snapshot) (missing []string) {
	for _, g := range groups {
		for _, cl := range g.Clusters {
			if snaps[cl] == nil && !slices.Contains(missing, cl) {
				missing = append(missing, cl)
			}
		}
	}
	return missing
}

// texts are those of one group; what no file can hold is said.
func texts(std streams, g apply.Group, snaps map[string]*topology.Snapshot) ([]apply.Text, error) {
	var of []*topology.Snapshot
	for _, cl := range g.Clusters {
		of = append(of, snaps[cl])
	}
	view := render.ViewOf(of, g.Settings)
	for _, what := range view.LeftOut {
		fmt.Fprintln(std.err, "left out:", what)
	}
	return apply.Once(g, view)
}

// show prints the texts, or how they differ from what is on disk.
func (c *renderCmd) show(std streams, groups []apply.Group, snaps map[string]*topology.Snapshot) error {
	changes := false
	for _, g := range groups {
		all, err := texts(std, g, snaps)
		if err != nil {
			return err
		}
		if c.Diff {
			d, err := apply.Diff(all, os.ReadFile)
			if err != nil {
				return err
			}
			changes = changes || d != ""
			all = []apply.Text{{Bytes: []byte(d)}}
		}
		for _, t := range all {
			if _, err := std.out.Write(t.Bytes); err != nil {
				return err
			}
		}
	}
	if changes {
		return exitCode(2)
	}
	return nil
}

// check runs every group's check; the error lists those that refused.
func check(ctx context.Context, std streams, groups []apply.Group, snaps map[string]*topology.Snapshot) error {
	var errs []error
	for _, g := range groups {
		all, err := texts(std, g, snaps)
		output := ""
		if err == nil {
			output, err = apply.TryCheck(ctx, g, all, &apply.Exec{})
		}
		switch {
		case err != nil:
			fmt.Fprint(std.err, output)
			errs = append(errs, fmt.Errorf("group %s: %w", g.Name, err))
		case len(g.Check) == 0:
			fmt.Fprintf(std.out, "%s: has no check; its templates render\n", g.Name)
		default:
			fmt.Fprintf(std.out, "%s: accepted\n", g.Name)
		}
	}
	return errors.Join(errs...)
}

// once applies the groups until each is live, refused or out of time.
func once(ctx context.Context, std streams, groups []apply.Group, snaps map[string]*topology.Snapshot) error {
	var views latest.Map[string, topology.View]
	for name, s := range snaps {
		views.Set(name, &topology.View{Snapshot: s})
	}
	a, err := apply.New(apply.Options{
		Groups: groups, Views: &views, Now: topology.NewTicker(time.Now),
		Logger: slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- a.Run(running) }()
	waitFor(ctx, a)
	stop()
	if err := <-done; err != nil {
		return err
	}
	return applied(std.out, a.Status())
}

// waitFor returns when no group makes progress any more, or is out of time.
func waitFor(ctx context.Context, a *apply.Applier) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for slices.ContainsFunc(a.Status(), isBusy) {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// isBusy reports whether a group has not come to a first result yet.
func isBusy(s apply.Status) bool {
	return s.State == apply.StateWaiting || s.State == apply.StatePending && s.Error == ""
}

// applied says what became of the groups; the error lists those that are not live.
func applied(out io.Writer, all []apply.Status) error {
	var errs []error
	for _, s := range all {
		if s.State != apply.StateApplied {
			errs = append(errs, fmt.Errorf("group %s is %s: %s", s.Group, s.State, strings.TrimSpace(s.Error+"\n"+s.LastOutput)))
			continue
		}
		fmt.Fprintf(out, "%s: applied, %d reloads\n", s.Group, s.Reloads)
	}
	return errors.Join(errs...)
}
