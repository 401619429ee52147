package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/consulinit"
	"github.com/pgsteer/pgsteer/templates/apply"
)

type consulInitCmd struct {
	Config    string `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file; every published cluster of it counts."`
	Output    string `short:"o" enum:"diff,hcl,json" default:"diff" help:"diff: compare with Consul, exit code 2 when something differs. hcl, json: print everything for other tools instead, and ask nobody; prepared queries are in json alone."`
	Apply     bool   `help:"Write what differs, after the diff."`
	Force     bool   `help:"With --apply: also over what pgsteer did not make."`
	Only      string `placeholder:"KIND/NAME" help:"Only this one, such as service-resolver/main or prepared-query/main-rw."`
	Gateway   string `placeholder:"NAME" help:"With mode external: link every published service to the terminating gateway of this name too."`
	TokenFile string `type:"path" placeholder:"FILE" help:"File with an operator's token, instead of consul.token_file; the agent's need not have these rights (pgsteer doctor --acl)."`
}

// Validate refuses flags that would do nothing.
func (c *consulInitCmd) Validate() error {
	switch {
	case c.Force && !c.Apply:
		return fmt.Errorf("--force is for --apply")
	case c.Apply && c.Output != "diff":
		return fmt.Errorf("--apply writes, and -o %s only prints", c.Output)
	}
	return nil
}

// Run prints what Consul needs, or how Consul differs from it, and writes it.
func (c *consulInitCmd) Run(ctx context.Context, std streams) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	docs, err := consulinit.Documents(cfg, consulinit.Options{Gateway: c.Gateway})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Config, err)
	}
	if docs, err = c.chosen(docs); err != nil {
		return err
	}
	switch c.Output {
	case "hcl":
		return printHCL(std, docs)
	case "json":
		return c.printJSON(std, docs)
	}
	if c.TokenFile != "" {
		cfg.Consul.TokenFile = c.TokenFile
	}
	return c.bring(ctx, std, cfg, docs)
}

func (c *consulInitCmd) chosen(docs []consulinit.Document) ([]consulinit.Document, error) {
	if c.Only == "" {
		return docs, nil
	}
	i := slices.IndexFunc(docs, func(d consulinit.Document) bool { return d.ID() == c.Only })
	if i < 0 {
		var all []string
		for _, d := range docs {
			all = append(all, d.ID())
		}
		return nil, fmt.Errorf("--only %s is none of: %s", c.Only, strings.Join(all, " "))
	}
	return docs[i : i+1], nil
}

// printHCL prints config entries; consul config write takes one at a time (--only).
func printHCL(std streams, docs []consulinit.Document) error {
	queries := 0
	for _, d := range docs {
		if !d.IsEntry() {
			queries++
			continue
		}
		if _, err := fmt.Fprintf(std.out, "# %s\n%s\n", d.ID(), d.Text()); err != nil {
			return err
		}
	}
	if queries > 0 {
		fmt.Fprintf(std.err, "prepared queries are no config entries and not here: %d; -o json has them\n", queries)
	}
	return nil
}

// printJSON prints one document as Consul takes it, or all of them by what they are.
func (c *consulInitCmd) printJSON(std streams, docs []consulinit.Document) error {
	if c.Only != "" {
		return output{}.json(std, docs[0].JSON())
	}
	all := struct {
		Entries []json.RawMessage `json:"config_entries"`
		Queries []json.RawMessage `json:"prepared_queries"`
	}{}
	for _, d := range docs {
		if d.IsEntry() {
			all.Entries = append(all.Entries, d.JSON())
		} else {
			all.Queries = append(all.Queries, d.JSON())
		}
	}
	return output{}.json(std, all)
}

// bring shows how Consul differs, and with --apply makes it the same.
func (c *consulInitCmd) bring(ctx context.Context, std streams, cfg *config.Config, docs []consulinit.Document) error {
	client, err := agent.ConsulClient(cfg, agent.Options{Logger: slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	defer client.Close()
	all, err := consulinit.Compare(ctx, client, docs)
	if err != nil {
		return err
	}
	var needed []consulinit.Change
	var foreign []string
	for _, ch := range all {
		if !ch.Needed() {
			continue
		}
		needed = append(needed, ch)
		if ch.Foreign {
			foreign = append(foreign, ch.ID())
		}
		if err := showChange(std, ch); err != nil {
			return err
		}
	}
	switch {
	case len(needed) == 0:
		_, err := fmt.Fprintf(std.out, "Consul at %s has everything as it should be: %d documents\n", client.Address(), len(all))
		return err
	case len(foreign) > 0 && !c.Force:
		return fmt.Errorf("pgsteer did not make %s; nothing was written (--apply --force overwrites)", strings.Join(foreign, " "))
	case !c.Apply:
		fmt.Fprintf(std.err, "%d of %d documents differ; --apply writes them to Consul at %s\n", len(needed), len(all), client.Address())
		return exitCode(2)
	}
	for i, ch := range needed {
		if err := ch.Write(ctx, client); err != nil {
			return fmt.Errorf("%w; %d of %d are written, and the next run goes on from there", err, i, len(needed))
		}
		fmt.Fprintln(std.out, "written:", ch.ID())
	}
	return nil
}

// showChange prints one difference, in the form of render --diff.
func showChange(std streams, ch consulinit.Change) error {
	d, err := apply.Diff([]apply.Text{{Destination: ch.ID(), Bytes: []byte(ch.Text())}}, func(string) ([]byte, error) {
		if ch.Before == "" {
			return nil, fs.ErrNotExist
		}
		return []byte(ch.Before), nil
	})
	if err == nil {
		_, err = fmt.Fprint(std.out, d)
	}
	return err
}
