package main

import (
	"errors"
	"fmt"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/simulate"
)

type simulateCmd struct {
	output
	Quiet bool     `short:"q" help:"Print only the expectations that failed."`
	Files []string `arg:"" name:"file" help:"Scenario files, as docs/simulate.md describes them."`
}

// Run plays every file. The exit code is 1 when an expectation failed, and 2
// when a file could not be played.
func (c *simulateCmd) Run(std streams) error {
	results := []*simulate.Result{}
	var bad, failed bool
	for _, file := range c.Files {
		r, err := play(file)
		if err != nil {
			complain(std, err)
			bad = true
			continue
		}
		failed = failed || len(r.Failures) > 0
		results = append(results, r)
		if err := c.show(std, r); err != nil {
			return err
		}
	}
	if c.Output == "json" {
		if err := simulate.WriteJSON(std.out, results); err != nil {
			return err
		}
	}
	switch {
	case bad:
		return exitCode(2)
	case failed:
		return exitCode(1)
	}
	return nil
}

func play(file string) (*simulate.Result, error) {
	s, err := simulate.Load(file)
	if err != nil {
		return nil, err
	}
	return s.Run()
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
