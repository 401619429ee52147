package lab

import (
	"fmt"
	"os"
	"path/filepath"
)

// Patroni4 is the release of Patroni that scripts/setup installs beside the
// system's own, for PatroniOptions.Release and as a name for [Available]. It
// must agree with scripts/setup.
const (
	Patroni4     = "4.1.5"
	NeedPatroni4 = "patroni-" + Patroni4
)

// patroniProgram is how a release of Patroni is started.
type patroniProgram struct {
	path string
	args []string // before the configuration file
}

// findPatroni4 returns the Python environment of Patroni4. Its script bin/patroni is
// not looked at, since nobody starts it.
func findPatroni4() (string, error) {
	if _, err := findPostgres(); err != nil {
		return "", err
	}
	dir := cached(NeedPatroni4)
	installed, err := filepath.Glob(filepath.Join(dir, "lib", "python*", "site-packages", NeedPatroni4+".dist-info"))
	if err != nil || len(installed) == 0 || !executable(patroni4Python(dir)) {
		return "", &Missing{What: "Patroni " + Patroni4, How: "scripts/setup test"}
	}
	return dir, nil
}

// patroniProgram returns the program of a release; empty means the system's.
func (l *Lab) patroniProgram(release string) (patroniProgram, error) {
	switch release {
	case "":
		path, err := findPatroni()
		return patroniProgram{path: path}, err
	case Patroni4:
		return l.patroni4()
	default:
		return patroniProgram{}, fmt.Errorf("lab: Patroni %q is not known: leave the release out, or take %s", release, Patroni4)
	}
}

// patroni4 runs the environment's interpreter, not its script: that one names the
// place where the environment was made. If the account of PostgreSQL cannot reach
// the cache, as below root's home, the lab gets a copy of its own.
func (l *Lab) patroni4() (patroniProgram, error) {
	dir, err := findPatroni4()
	if err != nil {
		return patroniProgram{}, err
	}
	if l.account != nil && unreachable(dir) != "" {
		to := filepath.Join(l.dir, l.unique(NeedPatroni4))
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			return patroniProgram{}, fmt.Errorf("lab: copying Patroni %s to where account postgres can reach it: %w", Patroni4, err)
		}
		dir = to
	}
	return patroniProgram{path: patroni4Python(dir), args: []string{"-m", "patroni"}}, nil
}

// patroni4Python is the interpreter of an environment.
func patroni4Python(dir string) string { return filepath.Join(dir, "bin", "python") }
