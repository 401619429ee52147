package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Gate is a point at which a PatroniNode can be made to stand still, so that a
// state that lasts for milliseconds can be looked at.
type Gate string

const (
	// GateStart is before PostgreSQL starts: its port is closed.
	GateStart Gate = "start"
	// GatePromote is when Patroni holds the leader key and PostgreSQL is still in
	// recovery (Patroni's pre_promote).
	GatePromote Gate = "promote"
	// GateRestore is before the first WAL file is restored, where PostgreSQL says
	// that it is starting up. It needs PatroniNode.RestoreCommand.
	GateRestore Gate = "restore"
)

// Hold closes a gate: the node waits there, from the next time that it comes by.
func (n *PatroniNode) Hold(g Gate) error { return n.c.lab.write(n.gateFile(g), "") }

// Release opens a gate. It does nothing if the gate is open.
func (n *PatroniNode) Release(g Gate) error {
	if err := os.Remove(n.gateFile(g)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab: patroni %s/%s: opening gate %s: %w", n.c.scope, n.name, g, err)
	}
	return nil
}

func (n *PatroniNode) gateFile(g Gate) string { return filepath.Join(n.dir, "hold-"+string(g)) }

// wait is a shell command that lasts as long as a gate is closed.
func (n *PatroniNode) wait(g Gate) string {
	return fmt.Sprintf("while [ -e '%s' ]; do sleep 0.05; done", n.gateFile(g))
}

// RestoreCommand returns a restore_command that finds no file, and waits at
// GateRestore before it says so.
func (n *PatroniNode) RestoreCommand() string {
	return fmt.Sprintf(`/bin/sh -c "%s; exit 1"`, n.wait(GateRestore))
}

// makeGates writes the node's scripts and its folder of PostgreSQL's programs, in
// which alone "postgres" is another: one that waits before it takes a data folder.
func (n *PatroniNode) makeGates() error {
	if err := n.c.lab.mkdir(n.binDir()); err != nil {
		return err
	}
	programs, err := os.ReadDir(n.c.pgbin)
	if err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	for _, p := range programs {
		if p.Name() == "postgres" {
			continue
		}
		if err := os.Symlink(filepath.Join(n.c.pgbin, p.Name()), filepath.Join(n.binDir(), p.Name())); err != nil {
			return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
		}
	}
	return errors.Join(
		n.script(filepath.Join(n.binDir(), "postgres"), fmt.Sprintf("case \" $* \" in\n*' -D '*) %s ;;\nesac\nexec '%s' \"$@\"",
			n.wait(GateStart), filepath.Join(n.c.pgbin, "postgres"))),
		n.script(n.prePromote(), n.wait(GatePromote)),
	)
}

func (n *PatroniNode) binDir() string     { return filepath.Join(n.dir, "bin") }
func (n *PatroniNode) prePromote() string { return filepath.Join(n.dir, "pre_promote") }

func (n *PatroniNode) script(path, text string) error {
	if err := n.c.lab.write(path, "#!/bin/sh\n"+strings.TrimSpace(text)+"\n"); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// Reconfigure changes the node's configuration file and has Patroni read it, at
// once if it runs, else with its next start. It returns before Patroni obeys,
// which it does within loop_wait.
func (n *PatroniNode) Reconfigure(change func(config map[string]any)) error {
	b, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	var c map[string]any
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	change(c)
	if b, err = json.MarshalIndent(c, "", "  "); err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	if err := n.c.lab.write(n.ConfigFile(), string(b)); err != nil {
		return err
	}
	if !n.process().usable() {
		return nil
	}
	// Not over REST, which may be what is changed.
	if err := n.process().cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("lab: patroni %s/%s: having it read %s: %w", n.c.scope, n.name, n.ConfigFile(), err)
	}
	return nil
}
