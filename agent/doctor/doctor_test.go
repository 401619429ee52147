package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

func TestStateFolder(t *testing.T) {
	dir := t.TempDir()
	same(t, of(t, "state-folder", options(t, "state_dir: "+dir)), "OK "+dir+": can be written")
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	same(t, of(t, "state-folder", options(t, "state_dir: "+dir+"/none")), "WARN "+dir+"/none: is not there yet")
	file := write(t, "file", "", 0o600)
	got := of(t, "state-folder", options(t, "state_dir: "+file))
	if len(got) != 1 || !strings.HasPrefix(got[0], "FAIL "+file+": ") {
		t.Errorf("a file in its place: %q", got)
	}
}

func TestSecrets(t *testing.T) {
	for mode, want := range map[os.FileMode]string{
		0o600: "OK mode 0600", 0o640: "OK mode 0640", 0o400: "OK mode 0400",
		0o660: "WARN mode 0660: its group may replace it", 0o644: "FAIL mode 0644: everybody on this host may use it",
		0o602: "FAIL mode 0602: everybody on this host may use it",
	} {
		file := write(t, "pw", "x\n", mode)
		level, found, _ := strings.Cut(want, " ")
		same(t, of(t, "secrets", options(t, "postgres: {password_file: "+file+"}")), level+" "+file+": "+found)
	}
	o := options(t, "")
	o.Config.Consul.TokenFile = "/nowhere/token"
	o.Config.Clusters[0].Patroni.KeyFile = write(t, "key", "", 0o600)
	got := of(t, "secrets", o)
	if len(got) != 2 || !strings.HasPrefix(got[0], "FAIL /nowhere/token: ") || !strings.HasPrefix(got[1], "OK ") {
		t.Errorf("%q", got)
	}
}

// certificate makes a file with certificates that end at these moments.
func certificate(t *testing.T, ends ...time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, end := range ends {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprint("c", i)}, NotBefore: noon.Add(-time.Hour), NotAfter: end}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return write(t, "c.pem", text.String(), 0o644)
}

func TestCertificates(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct{ file, want string }{
		{certificate(t, noon.Add(30*day)), "OK %s: CN=c0 is valid until 2026-03-31 12:00:00 UTC"},
		{certificate(t, noon.Add(30*day), noon.Add(3*day)), "WARN %s: CN=c1 is valid until 2026-03-04 12:00:00 UTC"},
		{certificate(t, noon.Add(-time.Minute)), "FAIL %s: CN=c0 ended at 2026-03-01 11:59:00 UTC"},
		{write(t, "x", "no\n", 0o600), "FAIL %s: there is no certificate in it"},
	} {
		o := options(t, "postgres: {sslrootcert: "+tt.file+"}")
		same(t, of(t, "certificates", o), fmt.Sprintf(tt.want, tt.file))
	}
	o := options(t, "postgres: {sslrootcert: "+certificate(t, noon.Add(300*day))+"}")
	o.Now = func() time.Time { return noon.Add(-2 * time.Hour) }
	if got := of(t, "certificates", o); !strings.HasPrefix(got[0], "FAIL ") || !strings.Contains(got[0], "begins at 2026-03-01 11:00:00 UTC only") {
		t.Errorf("before its time: %q", got)
	}
}

func TestLimits(t *testing.T) {
	var patroni strings.Builder
	patroni.WriteString("clusters:\n")
	for i := range 90 {
		fmt.Fprintf(&patroni, "  c%d: {authority: patroni}\n", i)
	}
	got := of(t, "limits", options(t, patroni.String()))
	if len(got) != 2 || got[1] != "WARN connections to Consul: 90 clusters need 120 of the 200 connections that Consul allows a client address by default" {
		t.Errorf("%q", got)
	}
	got = of(t, "limits", options(t, "clusters: {a: {authority: patroni}}"))
	if len(got) != 2 || !strings.HasPrefix(got[1], "OK ") {
		t.Errorf("%q", got)
	}
	for limit, want := range map[uint64]string{
		1540: "OK file descriptors: 1540, and 1 nodes need 1540 at most",
		1539: "WARN file descriptors: 1539, and 1 nodes need 1540 at most",
	} {
		o := options(t, "")
		o.FileLimit = limit
		same(t, of(t, "limits", o), want)
	}
	o := options(t, "")
	o.FileLimit = 1 // of this process; that of the running agent counts
	for open, want := range map[uint64]string{1600: "OK", 1601: "WARN"} {
		o.Agent = func(context.Context) *Agent { return &Agent{Files: open, FileLimit: 2000} }
		same(t, of(t, "limits", o), fmt.Sprintf("%s file descriptors: 2000, and 1 nodes need 1540 at most; the agent has %d open", want, open))
	}
}

func TestAgent(t *testing.T) {
	o := options(t, "")
	o.Agent = func(context.Context) *Agent { return nil }
	same(t, of(t, "agent", o), "OK : none runs by this configuration")
	o.Agent = func(context.Context) *Agent { return &Agent{Version: "1.2"} }
	same(t, of(t, "agent", o), "OK : version 1.2 runs")
	o.Agent = func(context.Context) *Agent {
		return &Agent{Version: "1.2", ConfigError: "bad", Failing: map[string]string{"xds": "refused", "agentcheck": "none", "template lb": "taken"}}
	}
	same(t, of(t, "agent", o), "WARN : the last reload was refused: bad", "WARN agentcheck: none", "WARN template lb: taken", "WARN xds: refused")
	// One that stands still has bound its ports: nobody is to be told to end it.
	o.Agent = func(context.Context) *Agent { return &Agent{Silent: context.DeadlineExceeded} }
	same(t, of(t, "agent", o), "FAIL : it is there and does not answer: context deadline exceeded")
	same(t, of(t, "listeners", o))
}

func TestListeners(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	at := taken.Addr().String()
	o := options(t, "listen: {agent_check: "+at+", health: 127.0.0.1:0, status: off, xds: off}\nagent_check: {ports: [{listen: 127.0.0.1:0, server: main/primary/n1}]}")
	got := of(t, "listeners", o)
	if len(got) != 3 || !strings.HasPrefix(got[0], "FAIL listen.agent_check "+at+": ") || !strings.Contains(got[0], "in use") {
		t.Errorf("%q", got)
	}
	same(t, got[1:], "OK listen.health 127.0.0.1:0: can be bound", "OK agent_check.ports for main/primary/n1 127.0.0.1:0: can be bound")
	o.Agent = func(context.Context) *Agent { return &Agent{Listeners: map[string]string{"agentcheck": at}} }
	same(t, of(t, "listeners", o)[:1], "OK listen.agent_check "+at+": the running agent's own")
	o = options(t, "listen: {agent_check: \"192.0.2.1:7431\", health: off, status: off, xds: off}")
	if got := of(t, "listeners", o); !strings.HasPrefix(got[0], "FAIL ") {
		t.Errorf("an address that this host has not: %q", got)
	}
}

func TestPoolPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	o := options(t, "haproxy: {sockets: [/x]}\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}, pools: {primary: {mode: write, listen: \"0.0.0.0:"+port+"\"}}}}")
	same(t, of(t, "pool-ports", o), "OK pool main/primary 0.0.0.0:"+port+": somebody listens")
	_ = l.Close()
	if got := of(t, "pool-ports", o); len(got) != 1 || !strings.HasPrefix(got[0], "WARN pool main/primary") {
		t.Errorf("%q", got)
	}
	o.Config.HAProxy.Sockets = nil
	same(t, of(t, "pool-ports", o))
}

func TestLogins(t *testing.T) {
	for class, do := range map[topology.FailureClass]string{
		topology.FailAuth: "pg_hba.conf", topology.FailTLS: "sslmode", topology.FailRefused: "listen_addresses",
		topology.FailTimeout: "firewall", topology.FailSlots: "CONNECTION LIMIT", topology.FailDatabase: "postgres.database",
		topology.FailName: "resolver", topology.FailLocal: "this host", topology.FailStarting: "log",
	} {
		o := options(t, "")
		o.Login = func(context.Context, string, topology.Node) (Session, *topology.Failure) {
			return nil, &topology.Failure{Class: class, Text: "said so"}
		}
		same(t, of(t, "login", o), "FAIL main/n1 10.0.0.1:5432: "+string(class)+": said so")
		for _, r := range Run(t.Context(), o) {
			if r.Check == "login" && !strings.Contains(r.Do, do) {
				t.Errorf("%s: do %q, which lacks %q", class, r.Do, do)
			}
		}
		same(t, of(t, "probe-role", o)) // what was not found out has no row, and login failed
	}
	o := options(t, "")
	o.Login = node1(func(*facts) {})
	same(t, of(t, "login", o), "OK main/n1 10.0.0.1:5432: logged in as pgsteer")
	o.Login = func(context.Context, string, topology.Node) (Session, *topology.Failure) {
		return session{err: errors.New("broken")}, nil
	}
	same(t, of(t, "login", o), "FAIL main/n1 10.0.0.1:5432: broken")
	o = options(t, "clusters: {main: {authority: patroni}}")
	o.Login = node1(func(*facts) {})
	same(t, of(t, "login", o), "WARN cluster main: no node is known")
	o.Agent = func(context.Context) *Agent {
		return &Agent{Nodes: map[string][]topology.Node{"main": {{Name: "n7", Address: topology.Address{Host: "10.0.0.7", Port: 1}}}}}
	}
	same(t, of(t, "login", o), "OK main/n7 10.0.0.7:1: logged in as pgsteer")
}

func TestRoleTLSSlotsClock(t *testing.T) {
	const n1 = "main/n1 10.0.0.1:5432: "
	for _, tt := range []struct {
		check, want string
		change      func(*facts)
	}{
		{"probe-role", "OK " + n1 + "pgsteer has pg_monitor, no more, and at most 10 connections", func(*facts) {}},
		{"probe-role", "WARN " + n1 + "pgsteer is a superuser: whoever reads its password has the database", func(f *facts) { f.Superuser = true }},
		{"probe-role", "FAIL " + n1 + "pgsteer lacks pg_monitor: WAL receivers, waiting commits and some settings stay unknown", func(f *facts) { f.Monitor = false }},
		{"probe-role", "WARN " + n1 + "pgsteer has rights that a probe does not need: REPLICATION", func(f *facts) { f.Beyond = "REPLICATION" }},
		{"probe-role", "WARN " + n1 + "pgsteer has no connection limit", func(f *facts) { f.Limit = -1 }},
		{"probe-role", "WARN " + n1 + "pgsteer has a connection limit of 3; each agent holds one session and makes a second one now and then", func(f *facts) { f.Limit = 3 }},
		{"probe-role", "OK " + n1 + "pgsteer has pg_monitor, no more, and at most 4 connections", func(f *facts) { f.Limit = 4 }},
		{"tls", "OK " + n1 + "encrypted (sslmode prefer)", func(*facts) {}},
		{"tls", "WARN " + n1 + "not encrypted: the server offers no TLS, and sslmode prefer takes that", func(f *facts) { f.TLS = false }},
		{"slots", "OK " + n1 + "77 of 97 slots are left", func(*facts) {}},
		{"slots", "OK " + n1 + "10 of 97 slots are left", func(f *facts) { f.Used = 87 }},
		{"slots", "WARN " + n1 + "9 of 97 slots are left", func(f *facts) { f.Used = 88 }},
		{"slots", "WARN " + n1 + "0 of 97 slots are left", func(f *facts) { f.Used = 99 }},
		{"clock", "OK " + n1 + "no difference", func(*facts) {}},
		{"clock", "OK " + n1 + "the node's clock is 1s off", func(f *facts) { f.NowUS += 1_000_000 }},
		{"clock", "WARN " + n1 + "the node's clock is -1.001s off", func(f *facts) { f.NowUS -= 1_001_000 }},
		{"clock", "FAIL " + n1 + "the node's clock is 1m0.001s off", func(f *facts) { f.NowUS += 60_001_000 }},
	} {
		o := options(t, "")
		o.Login = node1(tt.change)
		same(t, of(t, tt.check, o), tt.want)
	}
	for yaml, want := range map[string]string{
		"postgres: {sslmode: disable}":                    "OK " + n1 + "not encrypted, as sslmode disable says",
		"clusters: {main: {nodes: {n1: \"[::1]:5432\"}}}": "OK main/n1 [::1]:5432: not encrypted, and stays on this host",
	} {
		o := options(t, yaml)
		o.Login = node1(func(f *facts) { f.TLS = false })
		same(t, of(t, "tls", o), want)
	}
}

func TestConsul(t *testing.T) {
	for _, tt := range []struct {
		answer ConsulAnswer
		err    error
		want   string
	}{
		{ConsulAnswer{Keys: 5}, nil, "OK cluster a: 5 keys|OK cluster b: 5 keys"},
		{ConsulAnswer{}, nil, "WARN cluster a: there is no key|WARN cluster b: there is no key"},
		{ConsulAnswer{Keys: 5, Filtered: true}, nil, "FAIL cluster a: the token hides some of the keys"},
		{ConsulAnswer{}, errors.New("403"), "FAIL cluster a: 403"},
		{ConsulAnswer{}, fmt.Errorf("asked: %w", context.DeadlineExceeded), "FAIL cluster a: no answer within 3s"},
	} {
		o := options(t, "clusters: {a: {authority: patroni}, b: {authority: patroni}, c: {nodes: {n1: 10.0.0.1:1}}}")
		var asked []string
		o.Consul = func(_ context.Context, prefix string) (ConsulAnswer, error) {
			asked = append(asked, prefix)
			return tt.answer, tt.err
		}
		same(t, of(t, "consul", o), strings.Split(tt.want, "|")...)
		if asked[0] != "service/a/" {
			t.Errorf("asked for %q", asked)
		}
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	err := Write(&b, []Result{
		{Check: "one", Subject: "s", Level: OK, Tried: "x", Found: "fine"},
		{Check: "twelve", Subject: "main/n1 a:1", Level: Fail, Tried: "log in", Found: "auth: no\nway", Do: "that"},
		{Check: "one", Level: Warn, Tried: "y", Found: "odd", Do: "run:\nSELECT 1 -- one\nSELECT 2"},
	})
	want := `OK    one     s            fine
FAIL  twelve  main/n1 a:1  auth: no way
                           tried: log in
                           do: that
WARN  one                  odd
                           tried: y
                           do: run:
                             SELECT 1 -- one
                             SELECT 2
1 OK, 1 WARN, 1 FAIL
`
	if b.String() != want || err != nil {
		t.Errorf("%v\n%s", err, b.String())
	}
	for _, tt := range []struct {
		levels []Level
		want   Level
	}{{nil, OK}, {[]Level{OK, Warn, OK}, Warn}, {[]Level{Fail, Warn}, Fail}, {[]Level{Warn, Fail, OK}, Fail}} {
		var rs []Result
		for _, l := range tt.levels {
			rs = append(rs, Result{Level: l})
		}
		if got := Worst(rs); got != tt.want {
			t.Errorf("worst of %v is %s", tt.levels, got)
		}
	}
}

// The token's rights, job by job, but not those of an operator's job; what Consul
// does not tell is no fault of the token's.
func TestConsulRights(t *testing.T) {
	for _, tt := range []struct {
		lacks string // a right whose rule has this
		err   error
		want  string
	}{
		{"", nil, "OK watch: the token has all 1|OK maintenance: the token has all 1|OK publish: the token has all 5"},
		{"session", nil, "OK watch: the token has all 1|OK maintenance: the token has all 1|FAIL publish: the token lacks 1 of 5 rights"},
		{"", consul.ErrNoACLs, "OK watch: Consul asks nobody for rights|OK maintenance: Consul asks nobody for rights|OK publish: Consul asks nobody for rights"},
		{"", errors.New("away"), "WARN watch: away"},
	} {
		o := options(t, "maintenance: {store: consul}\nmesh: {mode: external}\nclusters: {a: {authority: patroni}}")
		o.Lacking = func(_ context.Context, rights []consul.Right) ([]consul.Right, error) {
			return slices.DeleteFunc(slices.Clone(rights), func(r consul.Right) bool {
				return tt.lacks == "" || !strings.Contains(r.String(), tt.lacks)
			}), tt.err
		}
		same(t, of(t, "consul-token", o), strings.Split(tt.want, "|")...)
	}
}
