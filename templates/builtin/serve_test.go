package builtin_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// answering runs a TCP server that answers each connection by a function.
func answering(t *testing.T, network string, answer func(c net.Conn)) netip.AddrPort {
	t.Helper()
	host := "127.0.0.1:0"
	if network == "tcp6" {
		host = "[::1]:0"
	}
	l, err := net.Listen(network, host)
	if err != nil {
		t.Skipf("%s on loopback: %v", network, err)
	}
	return answeringAt(t, l, answer)
}

func answeringAt(t *testing.T, l net.Listener, answer func(c net.Conn)) netip.AddrPort {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				answer(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// words are the agent-check answers by request, without the address that a server
// asks with; who asks for another gets none.
type words struct {
	mu sync.Mutex
	m  map[string]string
}

func (w *words) answer(c net.Conn) {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := strings.Fields(line)
	if a, ok := w.m[strings.Join(asked[:min(len(asked), 3)], " ")]; ok {
		_, _ = io.WriteString(c, a+"\n")
	}
}

func (w *words) set(primary, replica map[string]string, guard string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.m = map[string]string{"main primary !guard": guard}
	for n, a := range primary {
		w.m["main primary "+n] = a
	}
	for n, a := range replica {
		w.m["main replica "+n] = a
	}
}

// ask returns what is sent through a port: the server's name, or "".
func ask(port netip.AddrPort) string {
	c, err := net.DialTimeout("tcp", port.String(), time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// served is a real HAProxy on the built-in template, with an agent and three
// servers that send their names.
type served struct {
	agent            words
	primary, replica netip.AddrPort
	start            func(*testing.T)
}

const agentInterval = 50 * time.Millisecond

func newServed(t *testing.T, network string) *served {
	t.Helper()
	var nodes []topology.Node
	for _, n := range snapshot("main", 3, "").Nodes {
		n.Address = addressOf(answering(t, "tcp4", saying(n.Name)))
		nodes = append(nodes, n)
	}
	s := &served{primary: free(t), replica: free(t)}
	s.on(t, snapshotOf("main", nodes, "n1"), render.Settings{
		Agent: answering(t, network, s.agent.answer),
		Listen: map[render.PoolID][]netip.AddrPort{
			{Cluster: "main", Pool: "primary"}: {s.primary}, {Cluster: "main", Pool: "replica"}: {s.replica},
		},
		Options: render.Options{AgentInterval: agentInterval},
	})
	return s
}

// saying is a server that sends a name and then waits for the client's end.
func saying(name string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, name+"\n")
		_, _ = io.Copy(io.Discard, c)
	}
}

func addressOf(a netip.AddrPort) topology.Address {
	return topology.Address{Host: a.Addr().String(), Port: a.Port()}
}

// on prepares HAProxy for a snapshot; start starts it.
func (s *served) on(t *testing.T, snap *topology.Snapshot, settings render.Settings) {
	t.Helper()
	bin, cfg := haproxy(t), filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(cfg, mustRender(t, render.ViewOf([]*topology.Snapshot{snap}, settings)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start = func(t *testing.T) {
		cmd := exec.Command(bin, "-db", "-f", cfg)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}

func free(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestServes(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		t.Run("agent on "+network, func(t *testing.T) { serves(t, newServed(t, network)) })
	}
}

func serves(t *testing.T, s *served) {
	up, down, drain := "up 100%", "down #no", "up 0% #lag"
	s.agent.set(map[string]string{"n1": up, "n2": down, "n3": down}, map[string]string{"n1": down, "n2": up, "n3": drain}, "down #writer n1")
	s.start(t)
	eventually(t, "writes reach n1", func() bool { return ask(s.primary) == "n1" })
	eventually(t, "reads reach n2", func() bool { return ask(s.replica) == "n2" })

	session, err := net.Dial("tcp", s.primary.String())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	r := bufio.NewReader(session)
	if line, err := r.ReadString('\n'); line != "n1\n" {
		t.Fatalf("the session began with %q, %v", line, err)
	}
	s.agent.set(map[string]string{"n1": down, "n2": up, "n3": down}, map[string]string{"n1": up, "n2": down, "n3": drain}, "down #writer n2")
	_ = session.SetReadDeadline(time.Now().Add(agentInterval + time.Second)) // field report FR-15, by agent checks alone
	if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the session on the old writer lives on: %v", err)
	}
	eventually(t, "writes reach n2", func() bool { return ask(s.primary) == "n2" })
	eventually(t, "reads reach n1", func() bool { return ask(s.replica) == "n1" })

	s.agent.set(map[string]string{"n1": up, "n2": up, "n3": down}, nil, "down #writer n2")
	eventually(t, "two writers are refused", func() bool { return ask(s.primary) == "" })
	s.agent.set(map[string]string{"n1": down, "n2": up, "n3": down}, nil, "down #writer n2")
	eventually(t, "writes reach n2 again", func() bool { return ask(s.primary) == "n2" })
	s.agent.set(map[string]string{"n1": down, "n2": up, "n3": down}, nil, "up #no writer")
	eventually(t, "the guard refuses", func() bool { return ask(s.primary) == "" })
}

// Field report FR-19: from the first moment on no connection reaches a node that
// is not the writer, whether or not there is one, and whether or not anybody
// answers for the nodes.
func TestColdStart(t *testing.T) {
	down := map[string]string{"n1": "down #no", "n2": "down #no", "n3": "down #no"}
	writer := map[string]string{"n1": "up 100%", "n2": "down #no", "n3": "down #no"}
	for name, set := range map[string]func(*words){
		"n1 is the writer": func(w *words) { w.set(writer, nil, "down #writer n1") },
		"no writer":        func(w *words) { w.set(down, nil, "up #no writer") },
		"pgsteer is away":  func(w *words) {},
		"no writer, and no word of one standby": func(w *words) {
			w.set(map[string]string{"n1": "down #no", "n2": "down #no"}, nil, "up #no writer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				s := newServed(t, "tcp4")
				set(&s.agent)
				s.start(t)
				for begin := time.Now(); time.Since(begin) < 400*time.Millisecond; {
					if got := ask(s.primary); got != "" && (got != "n1" || name != "n1 is the writer") {
						t.Fatalf("a connection reached %s %v after the start", got, time.Since(begin))
					}
				}
			}
		})
	}
}
