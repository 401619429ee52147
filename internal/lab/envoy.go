package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// EnvoyOptions says what Envoy runs with.
type EnvoyOptions struct {
	// Bootstrap is the configuration, YAML or JSON. It needs no admin section:
	// the lab adds one.
	Bootstrap string
	// Args are added to the arguments. Hot restart is disabled, draining takes no
	// time and there is one worker thread, unless Args say otherwise.
	Args []string
}

// Envoy is a running Envoy.
type Envoy struct {
	lab       *Lab
	bin       string
	name      string
	dir       string
	adminPort int
	args      []string

	slot
}

// Envoy starts Envoy and returns when it is ready, which means that all its
// listeners and clusters have been initialised: with a configuration server in
// the bootstrap, that this one has answered or its initial timeout is over.
func (l *Lab) Envoy(ctx context.Context, o EnvoyOptions) (*Envoy, error) {
	bin, err := findEnvoy()
	if err != nil {
		return nil, err
	}
	port, err := l.FreePort()
	if err != nil {
		return nil, err
	}
	name := l.unique("envoy")
	e := &Envoy{lab: l, bin: bin, name: name, dir: filepath.Join(l.dir, name), adminPort: port, args: o.Args}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := os.WriteFile(e.ConfigFile(), []byte(o.Bootstrap), 0o644); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	l.onClose(func() error { return e.process().close(syscall.SIGTERM) })
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// ConfigFile returns the path of the bootstrap.
func (e *Envoy) ConfigFile() string { return filepath.Join(e.dir, "bootstrap.yaml") }

// AdminAddr returns the address of the admin interface, "127.0.0.1:port".
func (e *Envoy) AdminAddr() string { return loopback(e.adminPort) }

// LogFile returns the path of Envoy's log.
func (e *Envoy) LogFile() string { return filepath.Join(e.dir, "envoy.log") }

// Admin asks the admin interface, for example for "/clusters?format=json", and
// returns the body. A status other than 200 is an error.
func (e *Envoy) Admin(ctx context.Context, path string) (string, error) {
	out, status, err := request(ctx, http.MethodGet, "http://"+e.AdminAddr()+path, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("lab: %s: %s: status %d: %s", e.name, path, status, out)
	}
	return out, err
}

// Start starts Envoy after Stop or Kill and returns when it is ready. It does
// nothing if it runs.
func (e *Envoy) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	admin := fmt.Sprintf(`{"admin":{"address":{"socket_address":{"address":"127.0.0.1","port_value":%d}}}}`, e.adminPort)
	args := []string{"-c", e.ConfigFile(), "--config-yaml", admin, "--disable-hot-restart"}
	args = append(args, withDefaults(e.args, "--drain-time-s", "0", "--drain-strategy", "immediate", "--concurrency", "1")...)
	s := spec{name: e.name, path: e.bin, args: args, dir: e.dir, log: e.LogFile()}
	err := e.start(ctx, e.lab, s, readiness{e.name + " is ready", func(*process) (bool, error) {
		_, err := e.Admin(ctx, "/ready")
		return err == nil, err
	}})
	return broken(e.bin, err)
}

// broken explains why a program that is there could not be started. Of a script whose
// interpreter is gone, or a program whose loader is, the kernel says that the program
// is not there.
func broken(bin string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) || !executable(bin) {
		return err
	}
	lost := "what it is loaded by is gone"
	if f, err := os.Open(bin); err == nil {
		line, _ := bufio.NewReaderSize(io.LimitReader(f, 256), 256).ReadString('\n') // a short one is what it is
		if strings.HasPrefix(line, "#!") {
			lost = fmt.Sprintf("the interpreter of its first line (%s) is gone", strings.TrimSpace(line))
		}
		_ = f.Close()
	}
	return fmt.Errorf("%w: Envoy is there and broken: %s. Run scripts/setup test in the root of the repository, which sets up %s anew", err, lost, cached("envoy-"+envoyVersion))
}

// withDefaults adds pairs of flag and value whose flag is not in args: Envoy
// refuses a flag that is given twice.
func withDefaults(args []string, pairs ...string) []string {
	out := slices.Clone(args)
	given := map[string]bool{}
	for _, a := range args {
		given[a] = true
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if !given[pairs[i]] {
			out = append(out, pairs[i], pairs[i+1])
		}
	}
	return out
}

// Stop ends Envoy by SIGTERM.
func (e *Envoy) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return e.process().stop(ctx, syscall.SIGTERM)
}

// Kill ends Envoy by SIGKILL.
func (e *Envoy) Kill() error { return e.process().kill() }

// Freeze stops Envoy by SIGSTOP.
func (e *Envoy) Freeze() error { return e.process().freeze() }

// Thaw undoes Freeze.
func (e *Envoy) Thaw() error { return e.process().thaw() }
