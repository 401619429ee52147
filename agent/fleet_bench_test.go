package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

// fleetEnv in the environment of this test binary makes it serve that many clusters
// of three nodes instead of testing.
const fleetEnv = "PGSTEER_TEST_FLEET"

// BenchmarkFleet is what 1,000 quiet clusters of three nodes cost an agent with the
// defaults, which probes each node every second and logs in anew every five: its
// share of a core, its memory, and the sessions that it keeps at a node. The nodes are
// scripted and in another process. design.md section 9 wants at most half a core and
// 200 MB. One iteration is five seconds.
func BenchmarkFleet(b *testing.B) {
	const clusters = 1000
	f := startFleet(b, clusters)
	path := b.TempDir() + "/pgsteer.yaml"
	if err := os.WriteFile(path, []byte(f.config()), 0o600); err != nil {
		b.Fatal(err)
	}
	a, err := New(Options{Load: func() (*config.Config, error) { return config.Load(path) }, Version: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			b.Error("Run:", err)
		}
	}()
	pause := func(d time.Duration) {
		select {
		case <-time.After(d):
		case err := <-ended:
			ended <- err
			b.Fatal("the agent ended: ", err)
		}
	}
	for end := time.Now().Add(2 * time.Minute); f.writers(a) < clusters; pause(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%d of %d clusters have a writer", f.writers(a), clusters)
		}
	}
	pause(10 * time.Second) // a first decision is followed by a closer look
	before, used, began := f.counts(b), labtest.CPU(b), time.Now()
	for b.Loop() {
		pause(5 * time.Second)
	}
	took, cores := time.Since(began).Seconds(), labtest.CPU(b)-used
	after := f.counts(b)
	b.ReportMetric(0, "ns/op") // it is the length of a period
	b.ReportMetric(cores.Seconds()/took, "cores")
	b.ReportMetric(resident(b), "MB")
	b.ReportMetric(float64(after.Full-before.Full)/took, "probes/s")
	b.ReportMetric(float64(after.Logins-before.Logins)/took, "logins/s")
	b.ReportMetric(float64(after.Open)/(3*clusters), "sessions/node")
	if n := f.writers(a); n < clusters {
		b.Errorf("in the end %d of %d clusters have a writer", n, clusters)
	}
}

// fleet is the process that plays the nodes.
type fleet struct {
	nodes []string // addresses, three a cluster
	ask   io.Writer
	said  *bufio.Scanner
}

// fleetCounts are those of all nodes together.
type fleetCounts struct{ Full, Logins, Open int }

func startFleet(b *testing.B, clusters int) *fleet {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fleetEnv+"="+strconv.Itoa(clusters))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	f := &fleet{ask: in, said: bufio.NewScanner(out)}
	f.said.Buffer(nil, 1<<20)
	if !f.said.Scan() {
		b.Fatal("the nodes did not start: ", f.said.Err())
	}
	f.nodes = strings.Fields(f.said.Text())
	return f
}

func fleetName(i int) string { return fmt.Sprintf("c%04d", i) }

func (f *fleet) config() string {
	var text strings.Builder
	fmt.Fprint(&text, "state_dir: state\n", listen(), "postgres: {user: probe, sslmode: disable}\nclusters:\n")
	for i := 0; i < len(f.nodes); i += 3 {
		fmt.Fprintf(&text, "  %s:\n    nodes: {n1: %s, n2: %s, n3: %s}\n", fleetName(i/3), f.nodes[i], f.nodes[i+1], f.nodes[i+2])
	}
	return text.String()
}

func (f *fleet) writers(a *Agent) (n int) {
	for i := range len(f.nodes) / 3 {
		if v := a.Views().Get(fleetName(i)); v != nil && v.Snapshot.Writer == "n1" {
			n++
		}
	}
	return n
}

func (f *fleet) counts(b *testing.B) (c fleetCounts) {
	b.Helper()
	if _, err := fmt.Fprintln(f.ask); err != nil || !f.said.Scan() {
		b.Fatal("the nodes do not count: ", err, f.said.Err())
	}
	if err := json.Unmarshal(f.said.Bytes(), &c); err != nil {
		b.Fatal(err)
	}
	return c
}

// serveFleet plays the nodes until its input ends: it says their addresses, and then
// counts for each line of input.
func serveFleet(clusters string) error {
	n, err := strconv.Atoi(clusters)
	if err != nil {
		return err
	}
	var nodes []*pgtest.Server
	for range n {
		for _, p := range []pgtest.State{{Probe: primary}, {Probe: replica}, {Probe: replica}} {
			s := pgtest.New(p)
			addr, _, err := s.Listen()
			if err != nil {
				return err
			}
			nodes = append(nodes, s)
			fmt.Fprint(os.Stdout, addr, " ")
		}
	}
	fmt.Fprintln(os.Stdout)
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var c fleetCounts
		for _, s := range nodes {
			one := s.Counts()
			c.Full, c.Logins, c.Open = c.Full+one.Full, c.Logins+one.Logins, c.Open+s.Open()
		}
		if err := out.Encode(c); err != nil {
			return err
		}
	}
	return nil
}

// resident is the memory of this process, in MB.
func resident(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("memory is read from Linux's /proc: ", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb / 1000
		}
	}
	b.Fatal("/proc/self/status has no VmRSS")
	return 0
}
