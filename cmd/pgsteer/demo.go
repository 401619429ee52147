package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/pgsteer/pgsteer/internal/demo"
)

type demoCmd struct {
	output
	Event   []string `placeholder:"NAME" help:"Only these events: switchover, crash, freeze."`
	Verbose bool     `short:"v" help:"Show the logs of pgsteer and of the servers' starts and stops too."`
	Keep    bool     `help:"Leave the folder with configuration and logs in place."`
}

// Run runs the demo and prints its summary. It fails when a session reached a
// wrong node or HAProxy was reloaded.
func (c *demoCmd) Run(ctx context.Context, std streams) error {
	o := demo.Options{Out: std.out, Keep: c.Keep, Events: c.Event}
	if c.Output == "json" {
		o.Out = io.Discard
	}
	if c.Verbose {
		o.Logger = slog.New(slog.NewTextHandler(std.err, nil))
	}
	sum, err := demo.Run(ctx, o)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		err = c.json(std, sum)
	} else {
		sum.Print(std.out)
	}
	switch {
	case err != nil:
		return err
	case sum.WrongNode > 0:
		return fmt.Errorf("%d sessions reached a node that was not the writer", sum.WrongNode)
	case sum.Reloads != 0:
		return errors.New("HAProxy was reloaded, although no membership changed")
	}
	return nil
}
