package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/simulate"
)

type simulateCmd struct {
	output
	Quiet bool     `short:"q" help:"Print only the expectations that failed."`
	Files []string `arg:"" name:"file" help:"Scenario files, as docs/simulate.md describes them."`
}

// outcome is what became of the files.
type outcome struct {
	results []*simulate.Result
	failed  []string // files with an expectation that does not hold
	refused []string // files that could not be played
	stopped bool     // by a signal; the files after that one were not played
}

// Run plays every file. The exit code is the worst: 2 when a file could not be
// played, 1 when an expectation failed or a signal ended the playing.
func (c *simulateCmd) Run(ctx context.Context, std streams) error {
	o := outcome{results: []*simulate.Result{}}
	for _, file := range c.Files {
		r, err := play(ctx, file)
		if err != nil {
			complain(std, err)
			if o.stopped = errors.Is(err, simulate.ErrStopped); o.stopped {
				break
			}
			o.refused = append(o.refused, file)
			continue
		}
		if len(r.Failures) > 0 {
			o.failed = append(o.failed, file)
		}
		o.results = append(o.results, r)
		if err := c.show(std, r); err != nil {
			return err
		}
	}
	if c.Output == "json" {
		if err := simulate.WriteJSON(std.out, o.results); err != nil {
			return err
		}
	}
	return c.conclude(std, o)
}

// conclude says which of several files did not go well, and makes the exit code.
func (c *simulateCmd) conclude(std streams, o outcome) error {
	if len(c.Files) > 1 {
		for _, of := range []struct {
			what  string
			files []string
		}{{"not as expected", o.failed}, {"not played", o.refused}} {
			if len(of.files) > 0 {
				fmt.Fprintf(std.err, "pgsteer: %s, %d of %d files: %s\n", of.what, len(of.files), len(c.Files), strings.Join(of.files, ", "))
			}
		}
	}
	switch {
	case len(o.refused) > 0:
		return exitCode(2)
	case len(o.failed) > 0, o.stopped:
		return exitCode(1)
	}
	return nil
}

func play(ctx context.Context, file string) (*simulate.Result, error) {
	s, err := simulate.Load(file)
	if err != nil {
		return nil, err
	}
	return s.RunContext(ctx)
}

// show prints a result at once, unless all of them are printed as one list.
func (c *simulateCmd) show(std streams, r *simulate.Result) error {
	switch {
	case c.Output == "json":
		return nil
	case !c.Quiet:
		return simulate.WriteText(std.out, r)
	case len(r.Failures) > 0:
		return simulate.WriteFailures(std.out, r)
	}
	return nil
}

// complain prints why a file was not played; the next one is.
func complain(std streams, err error) {
	if faults, ok := errors.AsType[*config.Faults](err); ok {
		fmt.Fprintf(std.err, "%spgsteer: the scenario was refused and not played, faults: %d\n", faults.Detail(), len(faults.List))
		return
	}
	fmt.Fprintln(std.err, "pgsteer:", err)
}
