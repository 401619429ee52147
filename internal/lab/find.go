package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Names of the servers, for [Available].
const (
	NeedPostgres  = "postgres"
	NeedHAProxy   = "haproxy"
	NeedConsul    = "consul"
	NeedPatroni   = "patroni"
	NeedEnvoy     = "envoy"
	NeedPgBouncer = "pgbouncer"

	NeedAutoFailover = "pg_auto_failover"
)

// consulVersion and envoyVersion must agree with scripts/setup.
const (
	consulVersion = "1.14.11"
	envoyVersion  = "1.40.0"
)

// oldestPostgres is the lowest major version that pgsteer supports.
const oldestPostgres = 14

// Missing says that a server is not installed.
type Missing struct {
	What string // the server
	How  string // a command that gets it, to be run in the root of the repository
}

// Error names the server and how to get it.
func (m *Missing) Error() string {
	return fmt.Sprintf("lab: %s is not installed; to get it, run %s", m.What, m.How)
}

// HAProxyProgram returns the path of HAProxy, which need not be in PATH: Debian
// keeps it where normal users do not look. The error is a [*Missing].
func HAProxyProgram() (string, error) { return findHAProxy() }

// EnvoyProgram returns Envoy's path, or a [*Missing].
func EnvoyProgram() (string, error) { return findEnvoy() }

// PgbenchProgram returns the path of the pgbench of the newest PostgreSQL.
func PgbenchProgram() (string, error) {
	bin, err := findPostgres()
	return filepath.Join(bin, "pgbench"), err
}

// ConsulProgram returns Consul's path, or a [*Missing].
func ConsulProgram() (string, error) { return findConsul() }

// Available returns nil if the named server can be started, else a [*Missing].
func Available(server string) error {
	var err error
	switch server {
	case NeedPostgres:
		_, err = findPostgres()
	case NeedHAProxy:
		_, err = findHAProxy()
	case NeedConsul:
		_, err = findConsul()
	case NeedPatroni:
		_, err = findPatroni()
	case NeedPatroni4:
		_, err = findPatroni4()
	case NeedEnvoy:
		_, err = findEnvoy()
	case NeedPgBouncer:
		_, err = findPgBouncer()
	case NeedAutoFailover:
		_, _, err = findAutoFailover()
	default:
		err = fmt.Errorf("lab: no server is called %q", server)
	}
	return err
}

// findPostgres returns the folder of the programs of the newest PostgreSQL.
func findPostgres() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is valid
	best, dir := 0, ""
	for _, p := range dirs {
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p))))
		if err == nil && major >= oldestPostgres && major > best {
			best, dir = major, filepath.Dir(p)
		}
	}
	if dir != "" {
		return dir, nil
	}
	p, err := exec.LookPath("postgres")
	if err == nil {
		p, err = filepath.EvalSymlinks(p)
	}
	if err == nil && executable(filepath.Join(filepath.Dir(p), "pg_rewind")) {
		return filepath.Dir(p), nil
	}
	return "", &Missing{What: fmt.Sprintf("PostgreSQL %d or newer", oldestPostgres), How: "scripts/setup demo"}
}

func findHAProxy() (string, error) {
	return findProgram("HAProxy", "scripts/setup demo", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy")
}

func findPatroni() (string, error) {
	if _, err := findPostgres(); err != nil {
		return "", err
	}
	return findProgram("Patroni", "scripts/setup test", "/usr/bin/patroni")
}

// findAutoFailover returns pg_autoctl and the folder of the programs of the newest
// PostgreSQL that has the monitor's extension.
func findAutoFailover() (program, bin string, err error) {
	const how = "scripts/setup test"
	libs, _ := filepath.Glob("/usr/lib/postgresql/*/lib/pgautofailover.so") // the pattern is valid
	best := 0
	for _, p := range libs {
		home := filepath.Dir(filepath.Dir(p))
		if major, err := strconv.Atoi(filepath.Base(home)); err == nil && major > best && executable(filepath.Join(home, "bin", "postgres")) {
			best, bin = major, filepath.Join(home, "bin")
		}
	}
	if bin == "" {
		return "", "", &Missing{What: "pg_auto_failover's extension", How: how}
	}
	program, err = findProgram("pg_autoctl", how, "/usr/bin/pg_autoctl", filepath.Join(bin, "pg_autoctl"))
	return program, bin, err
}

func findPgBouncer() (string, error) {
	return findProgram("PgBouncer", "scripts/setup test", "/usr/sbin/pgbouncer", "/usr/bin/pgbouncer")
}

func findConsul() (string, error) {
	return findProgram("Consul "+consulVersion, "scripts/setup test", cached("consul-"+consulVersion, "consul"))
}

func findEnvoy() (string, error) {
	what := "Envoy " + envoyVersion
	pattern := cached("envoy-"+envoyVersion, "lib/python3*/site-packages/envoy/_bin/envoy")
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", &Missing{What: what, How: "scripts/setup test"}
	}
	return findProgram(what, "scripts/setup test", found[0])
}

// findProgram returns the first path that can be executed. A name that is not
// at its usual place is looked for in PATH, unless it lies in our cache.
func findProgram(what, how string, paths ...string) (string, error) {
	for _, p := range paths {
		if executable(p) {
			return p, nil
		}
	}
	if p, err := exec.LookPath(filepath.Base(paths[0])); err == nil && !isCached(paths[0]) {
		return p, nil
	}
	return "", &Missing{What: what, How: how}
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// cached returns a path inside the cache that scripts/setup fills.
func cached(elem ...string) string {
	return filepath.Join(append([]string{cacheDir()}, elem...)...)
}

func isCached(path string) bool {
	rel, err := filepath.Rel(cacheDir(), path)
	return err == nil && filepath.IsLocal(rel)
}

func cacheDir() string {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "pgsteer", "lab")
}
