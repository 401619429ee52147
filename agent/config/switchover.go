package config

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Switchover says how the cluster's authority is asked for a planned switchover.
type Switchover struct {
	// Command asks it; empty: Patroni's REST interface, or pg_auto_failover's monitor.
	Command []string `yaml:"command" type:"arguments"`
	// User and PasswordFile log in to Patroni's REST interface, or to the monitor.
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file" type:"file"`
	// CAFile and its like are for a REST interface over https whose certificates the
	// cluster's patroni section does not name.
	CAFile   string `yaml:"ca_file" type:"file"`
	CertFile string `yaml:"cert_file" type:"file"`
	KeyFile  string `yaml:"key_file" type:"file"`
	// Limit is how long PgBouncers are paused at most, Timeout how long the new writer
	// is waited for.
	Limit   time.Duration `yaml:"limit"`
	Timeout time.Duration `yaml:"timeout"`
}

// The placeholders that arguments of Switchover.Command may hold.
const (
	PlaceholderCluster = "{{.Cluster}}"
	PlaceholderFrom    = "{{.From}}" // the writer of before
	PlaceholderTo      = "{{.To}}"   // the candidate
)

func defaultSwitchover() Switchover {
	return Switchover{Limit: 10 * time.Second, Timeout: time.Minute}
}

func (w Switchover) check(s scope, c Cluster) {
	s.positive("limit", w.Limit)
	s.positive("timeout", w.Timeout)
	if w.Timeout < w.Limit {
		s.fault("timeout", "timeout %s is below limit %s: the new writer is waited for at least as long as PgBouncers are paused", w.Timeout, w.Limit)
	}
	s.pair("cert_file", "key_file", w.CertFile, w.KeyFile)
	if w.PasswordFile != "" && w.User == "" {
		s.fault("user", "password_file needs user beside it")
	}
	if c.Authority == topology.AuthorityNone && len(w.Command) == 0 && s.written("user") {
		s.fault("user", "user has no effect with `authority: none`, where only a `command` can switch over")
	}
	if len(w.Command) == 0 && s.written("command") {
		s.fault("command", "command is empty: name the program that switches over, or leave command out, so that the authority is asked")
	}
	w.checkProgram(s.in("command"))
	for i, arg := range w.Command {
		in, rest := s.in("command"), arg
		for _, known := range []string{PlaceholderCluster, PlaceholderFrom, PlaceholderTo} {
			rest = strings.ReplaceAll(rest, known, "")
		}
		if strings.Contains(rest, "{{") {
			in.fault(strconv.Itoa(i), "unknown placeholder in %s, known here: %s, %s, %s", quote(arg), PlaceholderCluster, PlaceholderFrom, PlaceholderTo)
		}
		if i == 0 && (strings.TrimSpace(arg) == "" || strings.Contains(arg, "{{")) {
			in.fault("0", "the first argument is the command itself, a name or a path")
		}
	}
}

// checkProgram: what a command names must be a program, since the first that is known
// of another one is an outage. Commands run in the folder /.
func (w Switchover) checkProgram(s scope) {
	if len(w.Command) == 0 || strings.TrimSpace(w.Command[0]) == "" || strings.Contains(w.Command[0], "{{") {
		return
	}
	program := w.Command[0]
	if strings.Contains(program, "/") && !filepath.IsAbs(program) {
		s.fault("0", "%s is relative, and commands run in the folder /: give the whole path", quote(program))
		return
	}
	if !s.d.open {
		return
	}
	if _, err := exec.LookPath(program); err != nil {
		s.fault("0", "%s must be a program that can be run: %v", quote(program), err)
	}
}
