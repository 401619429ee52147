package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// setups is a cluster of two nodes with an agent on each, as Patroni is, and what
// users have before it.
type setups struct {
	*front
	health map[string]string // the agents' addresses, by node
}

// newSetups starts the cluster and its agents.
func newSetups(t *testing.T, needs ...string) *setups {
	t.Helper()
	s := &setups{front: &front{rig: newRig(t, needs...)}}
	s.cluster = s.newCluster(lab.ClusterOptions{Nodes: 2})
	s.reigns = []reign{{node: s.cluster.Primary(), from: time.Now()}}
	s.health = map[string]string{}
	for _, n := range s.cluster.Nodes() {
		r := s.rig
		if n.Name() != "n1" {
			r = s.beside()
		}
		text := fmt.Sprintf("state_dir: %s\nlocal: main/%s\nlisten: {agent_check: off, health: %q, status: %q, xds: off}\n"+
			"postgres: {user: %s, password_file: %q}\nclusters: {main: {nodes: %s}}\n", r.path+".state", n.Name(), r.health, r.status,
			s.cluster.ProbeUser(), r.password(s.cluster.Password(s.cluster.ProbeUser())), nodeMap(s.addresses()))
		s.do(os.WriteFile(r.path, []byte(text), 0o600))
		r.up()
		s.health[n.Name()] = r.health
	}
	s.roles("n1", "n2")
	return s
}

// roles waits until each node's agent says what the node is.
func (s *setups) roles(primary, replica string) {
	s.t.Helper()
	s.until(primary+" to be the primary and "+replica+" the replica", func() bool {
		return s.says(primary, "/primary") && s.says(replica, "/replica") && !s.says(primary, "/replica") && !s.says(replica, "/primary")
	})
}

func (s *setups) says(node, path string) bool {
	code, _ := s.get(s.health[node], path)
	return code == http.StatusOK
}

// port is where a node's checks go.
func (s *setups) port(node string) string {
	_, port, _ := strings.Cut(s.health[node], ":")
	return port
}

// TestSetupsHAProxy runs the configurations that people have for Patroni, with
// nothing changed but addresses and ports, and moves the primary once.
func TestSetupsHAProxy(t *testing.T) {
	t.Parallel()
	s := newSetups(t, lab.NeedHAProxy)
	asks := map[string]form{} // by the listener's address
	s.haproxyFile(asks)
	s.haproxyConfd(asks)
	s.haproxyForms(asks)
	s.routes(asks, "n1", "n2")
	s.switchover("n2")
	s.roles("n2", "n1")
	s.routes(asks, "n2", "n1")
}

// haproxyFile starts HAProxy with the file that comes with Patroni.
func (s *setups) haproxyFile(asks map[string]form) {
	s.t.Helper()
	const file = "/usr/share/doc/patroni/examples/haproxy.cfg"
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Logf("not shown: Debian's package patroni has no examples here: %v", err)
		return
	}
	write, text := s.addr(), string(b)
	for from, to := range map[string]string{
		"*:7000": s.addr(), "*:5000": write, "127.0.0.1:5432 ": s.node("n1").Addr() + " ", "127.0.0.1:5433 ": s.node("n2").Addr() + " ",
		"check port 8008": "check port " + s.port("n1"), "check port 8009": "check port " + s.port("n2"),
	} {
		if strings.Count(text, from) != 1 {
			s.t.Fatalf("%s does not have %q once", file, from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	s.balancer(text)
	asks[write] = form{"primary", file}
}

// form is a check, and the role of the node that it finds.
type form struct{ role, check string }

// forms are the ways to write a check in HAProxy: those of before 2.2, where the
// request stands in one line, and those of today.
var forms = []form{
	{"primary", "option httpchk"},
	{"primary", "option httpchk OPTIONS /primary"},
	{"primary", "option httpchk /master"},
	{"replica", "option httpchk OPTIONS /replica?lag=100MB"},
	{"primary", `option httpchk GET /read-write HTTP/1.1\r\nHost:\ postgres\r\nConnection:\ close`},
	{"primary", "option httpchk\n\thttp-check send meth OPTIONS uri /primary"},
	{"replica", "option httpchk\n\thttp-check send meth GET uri /async ver HTTP/1.1 hdr Host postgres"},
	{"primary", "option httpchk\n\thttp-check connect\n\thttp-check send meth HEAD uri /leader ver HTTP/1.0\n\thttp-check expect rstatus ^2"},
	{"primary", "option httpchk GET /primary\n\thttp-check expect ! rstatus ^5"},
	{"primary", "option httpchk GET /patroni\n\thttp-check expect string '\"role\":\"primary\"'"},
}

// haproxyForms starts one HAProxy with a listener for each form.
func (s *setups) haproxyForms(asks map[string]form) {
	s.t.Helper()
	var b strings.Builder
	b.WriteString("global\n\tmaxconn 100\ndefaults\n\tmode tcp\n\tretries 2\n\ttimeout client 30m\n\ttimeout connect 4s\n" +
		"\ttimeout server 30m\n\ttimeout check 5s\n")
	for i, f := range forms {
		addr, expect := s.addr(), "\n\thttp-check expect status 200"
		if strings.Contains(f.check, "expect") {
			expect = ""
		}
		fmt.Fprintf(&b, "listen form%d\n\tbind %s\n\t%s%s\n\tdefault-server inter 3s fastinter 500ms fall 3 rise 2 on-marked-down shutdown-sessions\n",
			i, addr, f.check, expect)
		for _, n := range s.cluster.Nodes() {
			fmt.Fprintf(&b, "\tserver %s %s maxconn 100 check port %s\n", n.Name(), n.Addr(), s.port(n.Name()))
		}
		asks[addr] = f
	}
	s.balancer(b.String())
}

func (s *setups) balancer(text string) {
	s.t.Helper()
	_, err := s.lab.HAProxy(s.t.Context(), lab.HAProxyOptions{Config: text})
	s.do(err)
}

// routes waits until every listener leads to its node and to no other.
func (s *setups) routes(asks map[string]form, primary, replica string) {
	s.t.Helper()
	begin := time.Now()
	for addr, f := range asks {
		node := s.node(primary)
		if f.role == "replica" {
			node = s.node(replica)
		}
		again := 0 // a listener with two servers up would take turns
		s.until(fmt.Sprintf("the listener of %q to lead to %s", f.check, node.Name()), func() bool {
			if again++; s.reached(addr) != node.Port() {
				again = 0
			}
			return again == 4
		})
	}
	s.t.Logf("all %d listeners obey after %s", len(asks), time.Since(begin))
}

// TestSetupsProbes: curl and wget.
func TestSetupsProbes(t *testing.T) {
	t.Parallel()
	s := newSetups(t)
	none := s.addr() // nobody listens there
	for _, x := range []struct {
		name    string
		command []string
		no      int // exit code for a node that is not it
	}{
		{"curl -I", []string{"curl", "-fsI"}, 22},
		{"curl -s -o /dev/null -w", []string{"curl", "-fs", "-o", "/dev/null", "-w", "%{http_code}"}, 22},
		{"curl -X OPTIONS", []string{"curl", "-fs", "-X", "OPTIONS"}, 22},
		{"curl --http1.0", []string{"curl", "-fs", "--http1.0"}, 22},
		{"curl of two", []string{"curl", "-fsI", "http://" + s.health["n1"] + "/health"}, 22},
		{"wget --spider", []string{"wget", "-q", "--spider", "--tries=1"}, 8},
		{"wget -O", []string{"wget", "-q", "-O", "-", "--tries=1"}, 8},
	} {
		t.Run(x.name, func(t *testing.T) {
			if _, err := exec.LookPath(x.command[0]); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatalf("%s is not installed; run scripts/setup test", x.command[0])
				}
				t.Skipf("%s is not installed; run scripts/setup test", x.command[0])
			}
			for _, q := range []struct {
				url  string
				code int
			}{
				{"http://" + s.health["n1"] + "/primary", 0},
				{"http://" + s.health["n2"] + "/replica", 0},
				{"http://" + s.health["n1"] + "/", 0},
				{"http://" + s.health["n1"] + "/replica", x.no},
				{"http://" + s.health["n2"] + "/primary", x.no},
			} {
				if code, out := run(t, append(slices.Clip(x.command), q.url)...); code != q.code {
					t.Errorf("%s exits with %d, want %d: %s", q.url, code, q.code, out)
				}
			}
			if code, _ := run(t, append(slices.Clip(x.command), "http://"+none+"/primary")...); code == 0 {
				t.Error("nobody listens, and that is good")
			}
		})
	}
}

// run runs a program to its end and returns its exit code and output.
func run(t *testing.T, command ...string) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &b, &b, append(os.Environ(), "no_proxy=*")
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String()
}

// TestSetupsConsul: services whose checks are Patroni's, as it registers them.
func TestSetupsConsul(t *testing.T) {
	t.Parallel()
	s := newSetups(t, lab.NeedConsul)
	consul, err := s.lab.Consul(t.Context())
	s.do(err)
	for _, n := range s.cluster.Nodes() {
		for _, c := range []struct{ name, method, path string }{
			{"primary", "GET", "/primary"}, {"replica", "GET", "/replica"}, {"head", "HEAD", "/master"}, {"options", "OPTIONS", "/leader"},
		} {
			body := fmt.Sprintf(`{"name": %q, "id": %q, "address": "127.0.0.1", "port": %d, "check": {"http": "http://%s%s", "method": %q,
				"interval": "1s", "timeout": "2s", "DeregisterCriticalServiceAfter": "100s"}}`,
				c.name, c.name+"/"+n.Name(), n.Port(), s.health[n.Name()], c.path, c.method)
			raw := fmt.Sprintf("PUT /v1/agent/service/register HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			if r := tell(consul.Addr(), raw, 5*time.Second); r.status != http.StatusOK {
				t.Fatalf("registering %s: %s %s", c.name, r.head, r.body)
			}
		}
	}
	s.passing(consul, "n1", "n2")
	s.switchover("n2")
	s.passing(consul, "n2", "n1")
}

// passing waits until Consul knows the nodes by their checks.
func (s *setups) passing(consul *lab.Consul, primary, replica string) {
	s.t.Helper()
	for service, node := range map[string]string{"primary": primary, "head": primary, "options": primary, "replica": replica} {
		s.until("Consul to know that "+service+" is "+node, func() bool {
			r := tell(consul.Addr(), "GET /v1/health/service/"+service+"?passing HTTP/1.0\r\n\r\n", 5*time.Second)
			var found []struct{ Service struct{ Port int } }
			return json.Unmarshal(r.body, &found) == nil && len(found) == 1 && found[0].Service.Port == s.node(node).Port()
		})
	}
}
