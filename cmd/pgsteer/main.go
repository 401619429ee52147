// Command pgsteer steers connections to the right PostgreSQL node. Every
// subcommand is thin: it turns flags into options and calls a package.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/pgsteer/pgsteer/agent/config"
)

// cli is the command line.
type cli struct {
	Run            runCmd         `cmd:"" help:"Run the agent: watch, decide, and tell the balancers."`
	Validate       validateCmd    `cmd:"" help:"Read a configuration and print every fault with file:line:column."`
	Schema         schemaCmd      `cmd:"" help:"Print a JSON Schema of the configuration file, for editors with a YAML language server."`
	Status         statusCmd      `cmd:"" help:"Show what the running agent has decided."`
	Explain        explainCmd     `cmd:"" help:"Show why a node has its verdict, by which evidence, and what would change it."`
	Check          checkCmd       `cmd:"" help:"Say by exit code whether a node may take sessions in a pool: for HAProxy's external-check, Consul's script checks, and shells."`
	Maintenance    maintenanceCmd `cmd:"" help:"Take something out for maintenance, put it back, show what is out."`
	Switchover     switchoverCmd  `cmd:"" help:"Have the cluster's authority switch over while the clients of PgBouncer wait. The authority decides."`
	PgBouncer      pgbouncerCmd   `cmd:"" name:"pgbouncer" help:"Say something to a PgBouncer over its console: pause it for a while, keep new clients out, end its sessions."`
	Render         renderCmd      `cmd:"" help:"Print the files that the configuration's templates give for the running agent's nodes."`
	Doctor         doctorCmd      `cmd:"" help:"Look at everything around pgsteer: rights, ports, versions, files, clocks; say what is wrong and what to do."`
	Simulate       simulateCmd    `cmd:"" help:"Play scenario files against the rules: what would pgsteer do if …"`
	Record         recordCmd      `cmd:"" help:"Write down what the running agent sees of a cluster, as a scenario for simulate."`
	EnvoyBootstrap bootstrapCmd   `cmd:"" name:"envoy-bootstrap" help:"Print a bootstrap file for an Envoy that subscribes to this agent."`
	ConsulInit     consulInitCmd  `cmd:"" name:"consul-init" help:"Show, print or write the config entries and prepared queries that Consul needs once, to route by what pgsteer publishes."`
	Demo           demoCmd        `cmd:"" help:"Three real PostgreSQL nodes behind a real HAProxy on loopback: a switchover, a crash and a frozen primary, in about a minute."`
	Version        versionCmd     `cmd:"" help:"Print the version."`
}

// streams are what subcommands write to.
type streams struct {
	out, err io.Writer
}

func main() { os.Exit(run(asCheck(os.Args), streams{os.Stdout, os.Stderr})) }

// run is the whole program but for the process's exit; tests call it.
func run(args []string, std streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := -1
	parser, err := newParser(kong.Writers(std.out, std.err), kong.Exit(func(c int) { code = c }),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(std))
	if err != nil {
		fmt.Fprintln(std.err, "pgsteer:", err)
		return 2
	}
	k, err := parser.Parse(args)
	if code >= 0 { // --help
		return code
	}
	if err != nil {
		fmt.Fprintf(std.err, "pgsteer: %v\nTry pgsteer --help.\n", err)
		return 2
	}
	return report(std.err, k.Run())
}

func newParser(more ...kong.Option) (*kong.Kong, error) {
	return kong.New(&cli{}, append(more, kong.Name("pgsteer"),
		kong.Description("Steers connections to the right PostgreSQL node."))...)
}

// report prints an error and returns the exit code. Faults of a configuration
// keep their places at the beginning of the line, where editors look for them.
func report(w io.Writer, err error) int {
	var exit exitCode
	var faults *config.Faults
	code := 1
	if _, is := errors.AsType[misuse](err); is {
		code = 2
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &faults):
		fmt.Fprintf(w, "%spgsteer: the configuration was refused, faults: %d\n", faults.Detail(), len(faults.List))
		return code
	}
	fmt.Fprintln(w, "pgsteer:", err)
	return code
}

// misuse is a wrong command line that the parser lets through. It ends the program
// as one that the parser refuses.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

func misused(format string, args ...any) error { return misuse{fmt.Errorf(format, args...)} }

// exitCode ends the program with a code that means something, such as "there
// are differences", and no error text.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(std streams) error {
	_, err := fmt.Fprintln(std.out, "pgsteer", version())
	return err
}

// version is the module's version, or the commit of a build from a checkout.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && v == "(devel)" {
			v = s.Value[:12]
		}
	}
	return v
}
