package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pgsteer/pgsteer/agent/record"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
)

type recordCmd struct {
	running
	Out     string        `short:"o" type:"path" placeholder:"FILE" help:"File to write when the recording ends; standard output by default."`
	For     time.Duration `placeholder:"DURATION" help:"End after this time, such as 5m; by default at SIGINT or SIGTERM."`
	Mask    bool          `help:"Replace names of nodes, clusters, hosts, roles and databases, addresses, and identifiers."`
	Cluster string        `arg:"" placeholder:"CLUSTER" help:"The cluster to record."`
}

// Run records until it is to end and writes the scenario. It is an error, after
// the scenario has been written, that something is missing in it.
func (c *recordCmd) Run(ctx context.Context, std streams) error {
	if err := topology.CheckName(c.Cluster); err != nil {
		return misused("%w; the agent was not asked", err)
	}
	if c.For < 0 {
		return misused("--for %s is no time to record for; the agent was not asked", c.For)
	}
	out, err := c.open(std.out)
	if err != nil {
		return err
	}
	defer out.discard()
	if c.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.For)
		defer cancel()
	}
	s, err := c.read(ctx, std)
	if err != nil {
		return err
	}
	if c.Mask {
		if err := s.Mask(); err != nil {
			return fmt.Errorf("%w; nothing was written", err)
		}
	}
	var text bytes.Buffer
	if err := s.Encode(&text); err != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	if err := out.write(text.Bytes()); err != nil {
		return err
	}
	return c.tell(std, s, text.Bytes())
}

// read asks the agent and follows its answer.
func (c *recordCmd) read(ctx context.Context, std streams) (*record.Session, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(tap.Path+c.Cluster), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", c.Address, err)
	}
	transport := c.transport()
	transport.ResponseHeaderTimeout = 5 * time.Second
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, c.absent(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		var e struct{ Error string }
		if json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&e) == nil && e.Error != "" {
			return nil, errors.New(e.Error)
		}
		return nil, fmt.Errorf("the agent at %s answers %s, so it cannot be recorded; is it of this version?", c.Address, res.Status)
	}
	until := "until SIGINT (Ctrl-C) or SIGTERM"
	if c.For > 0 {
		until = "for " + c.For.String()
	}
	return record.Read(ctx, res.Body, func() { fmt.Fprintf(std.err, "recording %s %s\n", c.Cluster, until) })
}

// tell says what was written, and whether a replay shows the same.
func (c *recordCmd) tell(std streams, s *record.Session, text []byte) error {
	failed, err := record.Check(text)
	if err != nil {
		return fmt.Errorf("the scenario was written, but cannot be played: %w", err)
	}
	fmt.Fprintf(std.err, "recorded %s of %s: %d observations\n", s.Lasted().Round(time.Millisecond), c.Cluster, s.Observations())
	if failed > 0 {
		fmt.Fprintf(std.err, "a replay ends with other decisions than the agent's (%d differ): it does not know what the agent did before the beginning\n", failed)
	}
	switch {
	case s.Lost > 0:
		return fmt.Errorf("%d messages of the agent came too fast and are missing in the scenario, which was written all the same", s.Lost)
	case s.Ended != "":
		return fmt.Errorf("the recording ended early: %s; what was seen until then was written", s.Ended)
	}
	return nil
}

// target is where the scenario goes.
type target struct {
	file *renameio.PendingFile // nil: to
	to   io.Writer
}

// open makes sure before the recording that its file can be written.
func (c *recordCmd) open(standard io.Writer) (target, error) {
	if c.Out == "" {
		return target{to: standard}, nil
	}
	f, err := renameio.NewPendingFile(c.Out, renameio.WithTempDir(filepath.Dir(c.Out)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return target{}, fmt.Errorf("prepare %s: %w; the agent was not asked", c.Out, err)
	}
	return target{file: f}, nil
}

func (t target) discard() {
	if t.file != nil {
		_ = t.file.Cleanup() // does nothing once the file has its name
	}
}

// write replaces the file at once.
func (t target) write(b []byte) error {
	if t.file == nil {
		_, err := t.to.Write(b)
		return err
	}
	_, err := t.file.Write(b)
	if err == nil {
		err = t.file.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("write the recording: %w; it is lost", err)
	}
	return nil
}
