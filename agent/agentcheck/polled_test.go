package agentcheck

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// BenchmarkPolled is what 2,000 servers cost that a real HAProxy polls each
// second: CPU of this process, in percent of a core. HAProxy is another process.
// One iteration is a second.
func BenchmarkPolled(b *testing.B) {
	const servers = 2000
	labtest.Need(b, lab.NeedHAProxy)
	binary, err := lab.HAProxyProgram()
	if err != nil {
		b.Fatal(err)
	}
	s := newWorld(cluster("main")).server(b, Options{})
	ln := listen(b)
	ctx := b.Context()
	go func() { _ = s.Serve(ctx, ln) }()

	var text strings.Builder
	fmt.Fprintf(&text, `defaults
 mode tcp
 timeout connect 1s
 timeout client 1m
 timeout server 1m
 default-server weight 100 agent-check agent-addr 127.0.0.1 agent-port %d agent-inter 1s
listen l
 bind unix@%s/l.sock
`, ln.Addr().(*net.TCPAddr).Port, b.TempDir())
	for i := range servers {
		fmt.Fprintf(&text, " server s%d 127.0.0.1:9 agent-send \"main %s n%d\\n\"\n", i, []string{"primary", "replica"}[i%2], 1+i%3)
	}
	file := filepath.Join(b.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(binary, "-db", "-f", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(20 * time.Second); answered(s) < 2*servers; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("only %d answers in 20 s", answered(s))
		}
	}
	answers, used, began := answered(s), labtest.CPU(b), time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	took := time.Since(began).Seconds()
	b.ReportMetric(float64(answered(s)-answers)/took, "answers/s")
	b.ReportMetric(100*(labtest.CPU(b)-used).Seconds()/took, "cpu-%")
}

func answered(s *Server) uint64 {
	c := s.Counters()
	return c.Up.Load() + c.Drain.Load() + c.Down.Load() + c.Silent.Load() + c.Unknown.Load()
}
