package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

var update = flag.Bool("update", false, "write the generated page of the manual anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pgsteer": main, checkProgram: main})
}

// patience bounds every wait for something that must come.
const patience = 30 * time.Second

// TestScripts runs the program as its users do. Each script has its own folder
// and its own ports; commands besides those of testscript stand in commands.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Cmds: commands, Setup: setup, RequireExplicitExec: true})
}

// TestPostgresScripts runs scripts against a real PostgreSQL.
func TestPostgresScripts(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Name: "main", Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/postgres", Cmds: commands, RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			n := c.Nodes()[0]
			e.Setenv("N1", n.Addr())
			e.Setenv("N1_LOG", n.LogFile())
			e.Setenv("SUPER", n.DSN(lab.Superuser))
			e.Setenv("APP", n.DSN(lab.AppUser))
			e.Setenv("PROBE", c.ProbeUser())
			e.Setenv("PASSWORD", c.Password(c.ProbeUser()))
			return setup(e)
		},
	})
}

// setup gives a script the addresses CHECK, HEALTH, STATUS, XDS, and FREE, on
// all of which nobody listens.
func setup(e *testscript.Env) error {
	for _, name := range []string{"CHECK", "HEALTH", "STATUS", "XDS", "FREE"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		e.Setenv(name, l.Addr().String())
	}
	e.Setenv("HOME", e.WorkDir)
	return os.WriteFile(filepath.Join(e.WorkDir, "listen.yaml"), []byte(fmt.Sprintf(
		"state_dir: state\nlisten: {agent_check: %q, health: %q, status: %q, xds: %q}\n",
		e.Getenv("CHECK"), e.Getenv("HEALTH"), e.Getenv("STATUS"), e.Getenv("XDS"))), 0o600)
}

var commands = map[string]func(*testscript.TestScript, bool, []string){
	"until":  until,
	"http":   httpIs,
	"signal": signalAll,
	"occupy": occupy,
	"node":   newNode,
	"write":  write,
	"sql":    sql,
	"count":  count,
	"ends":   ends,
}

// until REGEXP PROGRAM ARG… runs a program until its output matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	var out []byte
	wait(ts, func() bool {
		program := args[1]
		if program == "pgsteer" {
			program = filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], program)
		}
		c := exec.Command(program, args[2:]...)
		c.Dir, c.Env = ts.MkAbs("."), []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}
		out, _ = c.CombinedOutput()
		return want.Match(out) != neg
	}, func() string { return fmt.Sprintf("output of %v to match %s (%t):\n%s", args[1:], args[0], !neg, out) })
}

func wait(ts *testscript.TestScript, ok func() bool, what func() string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("waited %s for %s", patience, what())
		}
	}
}

// http URL CODE [REGEXP] waits for an answer.
func httpIs(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile(strings.Join(args[2:], " "))
	var got string
	wait(ts, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+args[0], nil)
		ts.Check(err)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			got = err.Error()
			return false
		}
		defer func() { _ = res.Body.Close() }()
		b, _ := io.ReadAll(res.Body)
		got = fmt.Sprintf("%d %s", res.StatusCode, b)
		return strconv.Itoa(res.StatusCode) == args[1] && want.Match(b)
	}, func() string { return fmt.Sprintf("%v, the answer is %s", args, got) })
}

// signal NAME signals the program that runs in the background.
func signalAll(ts *testscript.TestScript, _ bool, args []string) {
	s := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT}[args[0]]
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(s))
	}
}

// ends DURATION waits until the program in the background has ended.
func ends(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	begin := time.Now()
	for _, c := range ts.BackgroundCmds() {
		wait(ts, func() bool { return syscall.Kill(c.Process.Pid, 0) != nil }, func() string { return c.String() + " to end" })
	}
	ts.Logf("it took %s", time.Since(begin))
	if time.Since(begin) > d {
		ts.Fatalf("the end took %s, more than %s", time.Since(begin), d)
	}
}

// occupy ADDRESS listens there until the script ends.
func occupy(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", args[0])
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
}

// node ADDRESS ROLE [PASSWORD] starts a scripted PostgreSQL.
func newNode(ts *testscript.TestScript, _ bool, args []string) {
	p := writerProbe
	if args[1] == "replica" {
		p = standbyProbe
	}
	s := pgtest.New(pgtest.State{Probe: p, Password: strings.Join(args[2:], "")})
	addr, stop, err := s.Listen()
	ts.Check(err)
	ts.Setenv(args[0], addr)
	ts.Defer(stop)
}

// write FILE PART… makes a file of files, with variables expanded, and moves it
// into its place as deployments do.
func write(ts *testscript.TestScript, _ bool, args []string) {
	var text bytes.Buffer
	for _, part := range args[1:] {
		text.WriteString(os.Expand(ts.ReadFile(part), ts.Getenv))
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path+".new", text.Bytes(), 0o600))
	ts.Check(os.Rename(path+".new", path))
}

// sql DSN STATEMENT… runs statements in a session that lasts until the script ends.
func sql(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, args[0])
	ts.Check(err)
	ts.Defer(func() { _ = c.Close(context.Background()) })
	for _, s := range args[1:] {
		_, err := c.Exec(ctx, s)
		ts.Check(err)
	}
}

// count N REGEXP FILE wants so many matches in a file.
func count(ts *testscript.TestScript, _ bool, args []string) {
	got := len(regexp.MustCompile(args[1]).FindAllString(ts.ReadFile(args[2]), -1))
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%d matches of %s in %s, want %s:\n%s", got, args[1], args[2], args[0], ts.ReadFile(args[2]))
	}
}
