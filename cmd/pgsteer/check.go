package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// checkProgram is the name under which the program is `pgsteer check`: HAProxy's
// external-check gives its command no argument of one's own.
const checkProgram = "pgsteer-check"

// asCheck turns the arguments of a program called checkProgram into those of
// `pgsteer check`.
func asCheck(args []string) []string {
	if filepath.Base(args[0]) == checkProgram {
		return append([]string{"check"}, args[1:]...)
	}
	return args[1:]
}

type checkCmd struct {
	Server  []string      `arg:"" optional:"" placeholder:"CLUSTER/POOL/NODE" help:"Whom to ask about, such as main/primary/n1. Left out, or with the four arguments that HAProxy gives to an external-check command: the server of HAPROXY_PROXY_NAME (be_CLUSTER_POOL) and HAPROXY_SERVER_NAME."`
	Address string        `default:"/run/pgsteer/pgsteer.sock" placeholder:"PATH" help:"Socket of the running agent, or HOST:PORT of its status listener (${default})."`
	Timeout time.Duration `default:"1s" help:"Give up after this time (${default}); keep it below HAProxy's inter."`
	Unknown string        `enum:"pass,fail" default:"fail" help:"Result when nothing is decided yet, or the agent cannot be asked: fail, or pass where a wrong node does less harm than none, as in read pools."`
	Drain   string        `enum:"pass,fail" default:"fail" help:"Result for a node that keeps its sessions and shall take no new ones, which an exit code cannot say: fail (HAProxy ends its sessions where it is told to), or pass (it takes new ones)."`
	Code    int           `default:"1" placeholder:"N" help:"Exit code of a check that failed (${default}). Consul takes 1 for a warning: use 2 there."`
	Quiet   bool          `short:"q" help:"Print nothing. So it is without an argument, as HAProxy runs it."`
	output
}

// Validate refuses a code by which a failed check would pass.
func (c *checkCmd) Validate() error {
	if c.Code < 1 || c.Code > 125 { // a shell has meanings of its own for those above
		return fmt.Errorf("--code %d: a failed check ends with 1 to 125", c.Code)
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %s must be above zero", c.Timeout)
	}
	return nil
}

// checked is what is printed.
type checked struct {
	status.Check
	Passes bool `json:"passes"`
	// Error says why the agent could not be asked, or knows no such server.
	Error string `json:"error,omitempty"`
}

// Run asks the agent whether a server may take sessions.
func (c *checkCmd) Run(ctx context.Context, std streams) error {
	path, external, err := c.subject(os.Getenv)
	if err != nil {
		return err
	}
	res := c.ask(ctx, path)
	if !c.Quiet && !external {
		if err := c.print(std, res); err != nil {
			return err
		}
	}
	if !res.Passes {
		return exitCode(c.Code)
	}
	return nil
}

// subject is the path to ask for, and whether HAProxy asks.
func (c *checkCmd) subject(getenv func(string) string) (path string, external bool, err error) {
	var names []string
	switch len(c.Server) {
	case 1:
		if names = strings.Split(c.Server[0], "/"); len(names) != 3 {
			return "", false, misused("%q is not CLUSTER/POOL/NODE, such as main/primary/n1; the agent was not asked", c.Server[0])
		}
	case 0, 4: // HAProxy's own arguments are addresses, by which no pool can be told
		names, external = []string{getenv("HAPROXY_PROXY_NAME"), getenv("HAPROXY_SERVER_NAME")}, true
		if names[0] == "" || names[1] == "" {
			return "", false, misused("say whom to ask about: CLUSTER/POOL/NODE, such as main/primary/n1; HAPROXY_PROXY_NAME and HAPROXY_SERVER_NAME are not set, so HAProxy does not ask")
		}
	default:
		return "", false, misused("%d arguments: one CLUSTER/POOL/NODE is expected, or the four of an external-check command", len(c.Server))
	}
	for _, name := range names {
		if err := topology.CheckName(name); err != nil {
			return "", false, misused("%q is not %s: %w; the agent was not asked", strings.Join(names, "/"), map[bool]string{true: "BACKEND/SERVER", false: "CLUSTER/POOL/NODE"}[external], err)
		}
	}
	return "/api/v1/check/" + strings.Join(names, "/"), external, nil
}

// ask turns the agent's word, or its silence, into a result.
func (c *checkCmd) ask(ctx context.Context, path string) checked {
	at := running{Address: c.Address}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var res checked
	err := at.get(ctx, path, &res.Check)
	var refused *refusal
	switch {
	case errors.As(err, &refused): // names that nobody knows never pass
		res.Error = err.Error()
	case err != nil:
		res.Error, res.Passes = err.Error(), c.Unknown == "pass"
	case res.Verdict == topology.Up:
		res.Passes = true
	case res.Verdict == topology.Drain:
		res.Passes = c.Drain == "pass"
	case res.Verdict == topology.Undecided:
		res.Passes = c.Unknown == "pass"
	}
	return res
}

func (c *checkCmd) print(std streams, res checked) error {
	if c.Output == "json" {
		return c.json(std, res)
	}
	word := "fails: "
	if res.Passes {
		word = "passes: "
	}
	text := res.Error
	if text == "" {
		text = res.String()
	}
	_, err := fmt.Fprintln(std.out, word+text)
	return err
}
