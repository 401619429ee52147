package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// probes are what the kubelet sends for Patroni's pods: the probes of Patroni's
// documentation and of its Helm charts, with the headers of the kubelet, or with
// those of httpHeaders instead.
var probes = []struct {
	name, path, headers string
	down                bool // fails while PostgreSQL does not run
}{
	{"liveness", "/liveness", kubelet, false},
	{"readiness", "/readiness", kubelet, true},
	{"readiness with a limit", "/readiness?lag=16MB&mode=apply", kubelet, true},
	{"startup", "/health", kubelet, true},
	{"startup with httpHeaders", "/health", "Host: postgres\r\nX-Probe: startup\r\nUser-Agent: kube-probe/1.31\r\nAccept: application/json\r\n", true},
	{"before 1.23", "/readiness", "Host: 10.1.2.3:8008\r\nUser-Agent: kube-probe/1.22\r\nAccept-Encoding: gzip\r\n", true},
}

const kubelet = "Host: 10.1.2.3:8008\r\nUser-Agent: kube-probe/1.31\r\nAccept: */*\r\n"

// TestSetupsKubelet: a pod's probes of a node that runs, that does not, and again.
func TestSetupsKubelet(t *testing.T) {
	t.Parallel()
	s := newSetups(t)
	s.probed("n1", true)
	s.probed("n2", true)
	s.do(s.node("n2").Stop(t.Context(), lab.Fast))
	s.probed("n2", false)
	s.do(s.node("n2").Start(t.Context()))
	s.probed("n2", true)
}

// probed waits until a node's probes are what they should be.
func (s *setups) probed(node string, runs bool) {
	s.t.Helper()
	for _, p := range probes {
		want := http.StatusOK
		if p.down && !runs {
			want = http.StatusServiceUnavailable
		}
		raw := fmt.Sprintf("GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n", p.path, p.headers)
		s.until(fmt.Sprintf("the %s probe of %s to be %d", p.name, node, want), func() bool { // a lag is known after two probes
			return tell(s.health[node], raw, 2*time.Second).status == want
		})
	}
}
