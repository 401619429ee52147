package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// both is a front with HAProxy and Envoy and clients at both.
func both(t *testing.T, o frontOptions) (*front, []*lab.Load) {
	t.Helper()
	o.haproxy, o.envoy = true, true
	f := newFront(t, o)
	var loads []*lab.Load
	for _, addr := range []string{f.write, f.envoyWrite, f.read, f.envoyRead} {
		reads := addr == f.read || addr == f.envoyRead
		loads = append(loads, f.lab.Load(addr, lab.LoadOptions{Sessions: 3, ReadOnly: reads, Timeout: patient}),
			f.lab.Load(addr, lab.LoadOptions{NewSession: true, ReadOnly: reads, Timeout: patient}))
	}
	for _, l := range loads {
		f.do(l.Wait(t.Context(), "clients to work", func(x lab.Sample) bool { return x.Op != lab.Connect && x.Err == nil }))
	}
	return f, loads
}

var clients = []string{
	"HAProxy, held writers", "HAProxy, new writers", "Envoy, held writers", "Envoy, new writers",
	"HAProxy, held readers", "HAProxy, new readers", "Envoy, held readers", "Envoy, new readers",
}

// poll watches what is said of the nodes until stopped: a node that stood must
// never be said to be down, and Envoy must keep its listeners.
type poll struct {
	f      *front
	stop   chan struct{}
	done   sync.WaitGroup
	counts map[string]int // answers; belongs to the goroutine until done
	faults []string
}

func (f *front) poll() *poll {
	p := &poll{f: f, stop: make(chan struct{}), counts: make(map[string]int)}
	p.done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.look()
			}
		}
	})
	f.t.Cleanup(func() { p.end() })
	return p
}

func (p *poll) look() {
	for _, q := range []string{"primary n1", "replica n2", "replica n3"} {
		p.heard(q, p.f.mayAsk("main "+q))
	}
	p.heard("guard", p.f.mayAsk("main primary !guard"))
	if out, err := p.f.envoy.Admin(p.f.t.Context(), "/listeners"); err == nil {
		if !strings.Contains(out, "main/primary") || !strings.Contains(out, "main/replica") {
			p.fault("Envoy's listeners are:\n" + out)
		}
	}
}

// heard judges an answer. The guard shuts the pool when it is up.
func (p *poll) heard(who, line string) {
	word, _, _ := strings.Cut(line, " ")
	if word == "" {
		word = "silence"
	}
	p.counts[who+" "+word]++
	bad := "down"
	if who == "guard" {
		bad = "up"
	}
	if word == bad || strings.HasPrefix(line, "up 0%") {
		p.fault(who + " is said to be " + line)
	}
}

func (p *poll) fault(text string) {
	if len(p.faults) < 5 {
		p.faults = append(p.faults, time.Now().Format(time.StampMilli)+" "+text)
	}
}

// end stops polling and fails the test for what was seen.
func (p *poll) end() {
	select {
	case <-p.stop:
		return
	default:
	}
	close(p.stop)
	p.done.Wait()
	for _, f := range p.faults {
		p.f.t.Error(f)
	}
	p.f.t.Logf("answers: %v", p.counts)
}

// A restart of the agent is not noticed by anybody.
func TestRestart(t *testing.T) {
	t.Parallel()
	f, loads := both(t, frontOptions{})
	worker, polling := f.worker(), f.poll()
	for range 2 {
		f.down()
		f.pause(2 * time.Second)
		f.up()
		f.decided("n1")
		f.pause(2 * time.Second)
	}
	polling.end()
	f.nobodyNoticed(loads)
	if now := f.worker(); now != worker {
		t.Errorf("HAProxy's worker was %d and is %d: it was reloaded", worker, now)
	}
}

// nobodyNoticed: no client of both was cut, and writers were on the writer alone.
func (f *front) nobodyNoticed(loads []*lab.Load) {
	f.t.Helper()
	for i, l := range loads {
		samples := l.Stop()
		f.unbroken(clients[i], samples)
		if i < 4 {
			f.onlyWriters(clients[i], samples)
		}
	}
}

// pause lets the clients work for a while.
func (f *front) pause(d time.Duration) {
	f.t.Helper()
	select {
	case <-time.After(d):
	case <-f.t.Context().Done():
	}
}

// decided waits until the agent, in this process or not, has decided on everybody.
func (f *front) decided(writer string) {
	f.t.Helper()
	f.until("the agent's decisions", func() bool {
		rep := f.report()
		if len(rep.Clusters) != 1 || rep.Clusters[0].Snapshot == nil || rep.Clusters[0].Snapshot.Writer != writer {
			return false
		}
		for _, p := range rep.Clusters[0].Snapshot.Pools {
			if p.Undecided() {
				return false
			}
		}
		return true
	})
}

// While the agent is away the writer vanishes without a word for everybody, and
// another node is promoted. When the agent is back, new sessions reach only that.
func TestFailoverWhileAway(t *testing.T) {
	t.Parallel()
	f, loads := both(t, frontOptions{links: true})
	old := f.writer()
	f.down()
	f.do(f.links[old.Name()].Cut())
	tl := f.failover()
	f.pause(time.Second)

	f.up()
	back := time.Now()
	f.is("main", "primary", f.writer().Name(), topology.Up, topology.CodeWriter)
	t.Logf("start of the agent to its decision: %s", time.Since(back))
	for i, addr := range []string{f.write, f.envoyWrite} {
		f.until("a new session on the new writer", func() bool { return f.reached(addr) == f.writer().Port() })
		t.Logf("start of the agent to new sessions on the new writer, %s: %s", clients[2*i], time.Since(back))
	}
	steered := time.Now()
	for _, i := range []int{0, 2} {
		for session := range 3 {
			f.do(loads[i].Wait(t.Context(), "held writers on the new writer", func(x lab.Sample) bool {
				return x.Session == session && x.Op == lab.Write && x.Err == nil && x.Port == f.writer().Port()
			}))
		}
	}
	t.Logf("start of the agent to all held sessions on the new writer: %s", time.Since(back))
	f.do(f.links[old.Name()].Heal())
	f.is("main", "primary", old.Name(), topology.Down, topology.CodeOldTimeline)
	f.pause(time.Second)
	for i, l := range loads {
		samples := l.Stop()
		if i < 4 {
			f.onlyWriters(clients[i], samples)
			continue
		}
		// Readers were on replicas. Once the promoted one left their pool they are
		// where they were, or on the other one.
		f.unbroken(clients[i]+" after the agent's return", between(samples, steered, time.Now()))
	}
	t.Logf("the writer was gone for %s before the agent came back", back.Sub(tl.Promoted))
}

// The real program, killed and started again, stopped and continued.
func TestProcessKilled(t *testing.T) {
	t.Parallel()
	program := buildProgram(t)
	var p *process
	f, loads := both(t, frontOptions{external: func(f *front) { p = f.run(program) }})
	worker, polling := f.worker(), f.poll()
	p.kill()
	f.pause(2 * time.Second)
	p = f.run(program)
	f.decided("n1")
	f.pause(2 * time.Second)

	p.signal(syscall.SIGSTOP)
	f.pause(10 * time.Second)
	p.signal(syscall.SIGCONT)
	f.decided("n1")
	f.pause(3 * time.Second)
	polling.end()
	f.nobodyNoticed(loads)
	if now := f.worker(); now != worker {
		t.Errorf("HAProxy's worker was %d and is %d: it was reloaded", worker, now)
	}
	p.signal(syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("pgsteer ended by SIGTERM with: %v", err)
	}
}

// buildProgram builds pgsteer as users run it.
func buildProgram(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "pgsteer")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-o", path, "github.com/pgsteer/pgsteer/cmd/pgsteer")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// process is a running pgsteer.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	wait func() error
}

// run starts the program. It stands in the lab's folder: the lab's guardian
// kills what is left there.
func (f *front) run(program string) *process {
	f.t.Helper()
	log, err := os.OpenFile(f.file("pgsteer.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, "run", "-c", f.path)
	cmd.Dir, cmd.Stdout, cmd.Stderr = f.lab.Dir(), log, log
	f.do(cmd.Start())
	p := &process{t: f.t, cmd: cmd, wait: sync.OnceValue(cmd.Wait)}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill() // SIGKILL ends a stopped process too
		_ = p.wait()
		if b, err := os.ReadFile(log.Name()); f.t.Failed() && err == nil {
			f.t.Logf("pgsteer wrote:\n%s", b)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	var exit *exec.ExitError
	if err := p.wait(); !errors.As(err, &exit) {
		p.t.Fatalf("killed, it ended with: %v", err)
	}
}
