package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	callTimeout = time.Minute     // for a call whose context has no deadline
	stopGrace   = 5 * time.Second // between asking a server to stop and killing it, in Close
	// answerTimeout is for a server that is asked because it may not answer.
	answerTimeout = 5 * time.Second
	pollEvery     = 10 * time.Millisecond
)

// Options of a lab. The zero value is a lab in a temporary folder without logs.
type Options struct {
	// Dir is the folder for all files; empty means a new temporary one. It must be
	// empty or not exist, and when the lab runs as root, the account "postgres"
	// must be able to reach it.
	Dir string
	// Logger gets a line for each start and stop; nil discards them.
	Logger *slog.Logger
	// Keep leaves the folder in place after Close.
	Keep bool
}

// Lab is a set of running servers. Its methods may be called concurrently.
type Lab struct {
	dir     string
	sockets string
	log     *slog.Logger
	keep    bool
	account *account // who runs PostgreSQL; nil: we ourselves

	starts   chan func() // executed on the one thread that owns all children
	closing  chan struct{}
	stopped  sync.WaitGroup
	guardian *guardian

	mu       sync.Mutex
	closed   bool
	cleanups []func() error
	ports    map[int]net.Listener // the locks of the ports that are ours
	names    map[string]int       // how many servers of a kind were made
}

// New prepares a lab: its folder and its guardian. Nothing is started yet.
func New(o Options) (*Lab, error) {
	acc, err := findAccount()
	if err != nil {
		return nil, err
	}
	dir, err := makeDir(o.Dir, acc)
	if err != nil {
		return nil, err
	}
	l := &Lab{
		dir: dir, sockets: filepath.Join(dir, "s"), log: o.Logger, keep: o.Keep, account: acc,
		starts: make(chan func()), closing: make(chan struct{}),
		ports: map[int]net.Listener{}, names: map[string]int{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.mkdir(l.sockets); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if l.guardian, err = startGuardian(dir, o.Keep); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l.stopped.Go(l.starter)
	return l, nil
}

// Dir returns the folder of the lab, an absolute path. A process that works
// inside it and has no terminal is killed by Close.
func (l *Lab) Dir() string { return l.dir }

// SocketPath returns a path for a Unix socket, short enough for the kernel.
func (l *Lab) SocketPath(name string) string { return filepath.Join(l.sockets, name) }

// Close stops everything in reverse order of its start, kills what resists, and
// removes the folder unless Keep was set. It is safe to call it twice.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	cleanups := l.cleanups
	l.mu.Unlock()

	var errs []error
	for _, f := range slices.Backward(cleanups) {
		errs = append(errs, f())
	}
	for _, pid := range workingIn(l.dir) {
		l.log.Info("killing a process that was left in the lab", "pid", pid)
		errs = append(errs, killTree(pid))
	}
	close(l.closing)
	l.stopped.Wait()
	if !l.keep {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	l.guardian.dismiss()
	for _, ln := range l.ports {
		errs = append(errs, ln.Close())
	}
	return errors.Join(errs...)
}

// onClose has f called by Close, latest first.
func (l *Lab) onClose(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanups = append(l.cleanups, f)
}

// unique returns kind for the first server of a kind, then kind-2 and so on.
func (l *Lab) unique(kind string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[kind]++
	if n := l.names[kind]; n > 1 {
		return kind + "-" + strconv.Itoa(n)
	}
	return kind
}

// account is the user that PostgreSQL runs as when we are root.
type account struct{ uid, gid uint32 }

func findAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, &Missing{What: "the account postgres", How: "scripts/setup demo"}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("lab: account postgres: %w", err)
	}
	return &account{uid: uint32(uid), gid: uint32(gid)}, nil
}

// makeDir makes the lab's folder and checks that acc reaches it.
func makeDir(dir string, acc *account) (string, error) {
	var err error
	if dir == "" {
		parent := os.TempDir()
		if acc != nil && unreachable(parent) != "" {
			parent = "/tmp"
		}
		dir, err = os.MkdirTemp(parent, "pgsteer-lab-")
	} else {
		err = makeEmpty(dir)
	}
	if err != nil {
		return "", fmt.Errorf("lab: making its folder: %w", err)
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("lab: preparing its folder: %w", err)
	}
	if p := unreachable(dir); acc != nil && p != "" {
		return "", fmt.Errorf("lab: account postgres cannot reach %s, since others may not enter %s", dir, p)
	}
	return dir, nil
}

// makeEmpty makes a folder, or takes one that is empty: Close will remove it.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	return err
}

// unreachable returns the first folder on the way to dir that others may not
// enter, or an empty text.
func unreachable(dir string) string {
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm()&0o001 == 0 {
			return p
		}
		if p == filepath.Dir(p) {
			return ""
		}
	}
}

// mkdir makes a folder that belongs to the account that runs PostgreSQL.
func (l *Lab) mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return l.chown(dir)
}

func (l *Lab) chown(path string) error {
	if l.account == nil {
		return nil
	}
	if err := os.Lchown(path, int(l.account.uid), int(l.account.gid)); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// write writes a file that the account that runs PostgreSQL owns, and nobody
// else reads.
func (l *Lab) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return l.chown(path)
}

// bound gives ctx a deadline if it has none.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// wait returns after a time, or when ctx has ended.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poll calls f every so often until it says true, or until ctx ends. An error
// of f is no end: it is reported when the time is up.
func poll(ctx context.Context, what string, every time.Duration, f func() (bool, error)) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		ok, err := f()
		if ok {
			return nil
		}
		if fatal, yes := errors.AsType[*fatalError](err); yes {
			return fmt.Errorf("lab: waiting until %s: %w", what, fatal.err)
		}
		select {
		case <-ctx.Done():
			err = cmp.Or(err, errors.New("not yet"))
			return fmt.Errorf("lab: waiting until %s: %w; last answer: %w", what, context.Cause(ctx), err)
		case <-t.C:
		}
	}
}

// fatalError ends poll.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

// guardian is a shell that outlives us: when our end of its input closes, it
// kills all that works inside the lab's folder and removes it.
type guardian struct {
	cmd   *exec.Cmd
	input *os.File
}

// The fifth field after the name in stat is the terminal, see workingIn.
const guardianScript = `
trap '' HUP INT TERM
dir=$1 mode=$2
read -r never
for round in 1 2 3; do
	for p in /proc/[0-9]*; do
		case "$(readlink "$p/cwd" 2>/dev/null)" in
		"$dir" | "$dir"/*) ;;
		*) continue ;;
		esac
		stat=$(cat "$p/stat" 2>/dev/null) || continue
		set -- ${stat##*)}
		[ "$5" = 0 ] && kill -KILL "${p#/proc/}" 2>/dev/null
	done
done
[ "$mode" = keep ] || rm -rf -- "$dir"
`

func startGuardian(dir string, keep bool) (*guardian, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("lab: guardian: %w", err)
	}
	defer r.Close()
	mode := "remove"
	if keep {
		mode = "keep"
	}
	cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", guardianScript, "pgsteer-lab-guardian", dir, mode)
	cmd.Dir, cmd.Stdin = "/", r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: guardian: %w", err), w.Close())
	}
	return &guardian{cmd: cmd, input: w}, nil
}

// dismiss ends the guardian before it acts.
func (g *guardian) dismiss() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait() // "signal: killed" is what was asked for
	_ = g.input.Close()
}
