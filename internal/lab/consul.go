package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ConsulOptions says what a Consul is to have. The zero value is a server that
// everybody may use over HTTP.
type ConsulOptions struct {
	// ACL has it deny everything to those without a token; Token is one that may
	// do anything.
	ACL bool
	// CertFile and KeyFile have it speak HTTPS as well. With CAFile, clients need
	// a certificate that it signed.
	CertFile, KeyFile, CAFile string
	// ScriptChecks has it run programs as checks: whoever reaches its port may then
	// run programs as this user.
	ScriptChecks bool
	// DNS has it answer DNS, at DNSAddr.
	DNS bool
	// Sidecars is how many sidecars of the service mesh may be registered at it.
	Sidecars int
	// Join makes it a client agent of that server, without data of its own. As
	// every client agent it leaves when it is stopped, so that the catalog loses
	// its node and services until it is back.
	Join *Consul
}

// Consul is a single Consul server (not in -dev mode, so its data survive a
// restart), or a client agent of one. A server's HTTP and gRPC ports and the
// service mesh are enabled; the WAN is not.
type Consul struct {
	lab   *Lab
	o     ConsulOptions
	bin   string
	name  string
	dir   string
	http  int
	grpc  int
	https int
	serf  int
	dns   int
	row   int // the first port of sidecars

	slot
}

// consulToken may do anything at a Consul with ACLs.
const consulToken = "1ab00000-0000-0000-0000-000000000000"

// Consul starts a Consul server and returns when it has elected itself and
// takes writes, after about a second.
func (l *Lab) Consul(ctx context.Context) (*Consul, error) {
	return l.ConsulWith(ctx, ConsulOptions{})
}

// ConsulWith starts a Consul as Lab.Consul does.
func (l *Lab) ConsulWith(ctx context.Context, o ConsulOptions) (*Consul, error) {
	bin, err := findConsul()
	if err != nil {
		return nil, err
	}
	ports, err := l.freePorts(6)
	if err != nil {
		return nil, err
	}
	row := 0
	if o.Sidecars > 0 {
		if row, err = l.freeRow(o.Sidecars); err != nil {
			return nil, err
		}
	}
	name := l.unique("consul")
	c := &Consul{
		lab: l, o: o, bin: bin, name: name, dir: filepath.Join(l.dir, name),
		http: ports[0], grpc: ports[1], https: ports[2], serf: ports[3], dns: ports[5], row: row,
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := c.writeConfig(ports[4]); err != nil {
		return nil, err
	}
	l.onClose(func() error { return c.process().close(syscall.SIGTERM) })
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Client starts a client agent of a server, see ConsulOptions.Join.
func (c *Consul) Client(ctx context.Context) (*Consul, error) {
	return c.lab.ConsulWith(ctx, ConsulOptions{Join: c})
}

func (c *Consul) writeConfig(server int) error {
	type m = map[string]any
	ports := m{
		"http": c.http, "grpc": c.grpc, "serf_lan": c.serf, "server": server,
		"https": -1, "dns": -1, "serf_wan": -1, "grpc_tls": -1,
	}
	config := m{
		"node_name": "lab", "server": true, "bootstrap_expect": 1, "data_dir": filepath.Join(c.dir, "data"),
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "log_level": "info",
		"disable_update_check": true, "leave_on_terminate": false,
		"connect": m{"enabled": true}, "ports": ports,
		"performance": m{"raft_multiplier": 1},
		// A server that is alone needs no patience before it elects itself.
		"consul": m{"raft": m{"election_timeout": "100ms", "heartbeat_timeout": "100ms", "leader_lease_timeout": "50ms"}},
	}
	if c.o.ACL {
		config["acl"] = m{"enabled": true, "default_policy": "deny", "tokens": m{"initial_management": consulToken}}
	}
	if c.o.DNS {
		ports["dns"] = c.dns
	}
	if c.o.Sidecars > 0 {
		ports["sidecar_min_port"], ports["sidecar_max_port"] = c.row, c.row+c.o.Sidecars-1
	}
	if c.o.ScriptChecks {
		config["enable_script_checks"] = true
	}
	if c.o.CertFile != "" {
		ports["https"] = c.https
		config["tls"] = m{"https": m{
			"cert_file": c.o.CertFile, "key_file": c.o.KeyFile, "ca_file": c.o.CAFile, "verify_incoming": c.o.CAFile != "",
		}}
	}
	if server := c.o.Join; server != nil {
		maps.DeleteFunc(config, func(key string, _ any) bool {
			return slices.Contains([]string{"bootstrap_expect", "connect", "performance", "consul"}, key)
		})
		ports["grpc"] = -1
		config["node_name"], config["server"], config["leave_on_terminate"] = c.name, false, true
		config["retry_join"], config["retry_interval"] = []string{loopback(server.serf)}, "200ms"
	}
	b, err := json.MarshalIndent(config, "", "\t")
	if err == nil {
		err = os.WriteFile(c.configFile(), b, 0o644)
	}
	if err != nil {
		return fmt.Errorf("lab: %s: %w", c.name, err)
	}
	return nil
}

func (c *Consul) configFile() string { return filepath.Join(c.dir, "consul.json") }

// Addr returns the address of the HTTP API, "127.0.0.1:port".
func (c *Consul) Addr() string { return loopback(c.http) }

// HTTPSAddr returns the address of the API over TLS, "127.0.0.1:port".
func (c *Consul) HTTPSAddr() string { return loopback(c.https) }

// Token returns a token that may do anything, empty without ACLs.
func (c *Consul) Token() string {
	if !c.o.ACL {
		return ""
	}
	return consulToken
}

// GRPCAddr returns the address for Envoy's configuration, "127.0.0.1:port".
func (c *Consul) GRPCAddr() string { return loopback(c.grpc) }

// DNSAddr returns the address at which it answers DNS, with ConsulOptions.DNS.
func (c *Consul) DNSAddr() string { return loopback(c.dns) }

// LogFile returns the path of Consul's log.
func (c *Consul) LogFile() string { return filepath.Join(c.dir, "consul.log") }

// Start starts Consul after Stop or Kill, on the same ports and with the same
// data, and returns when it takes writes. It does nothing if it runs.
func (c *Consul) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	s := spec{
		name: c.name, path: c.bin, args: []string{"agent", "-config-file", c.configFile()}, dir: c.dir, log: c.LogFile(),
	}
	return c.start(ctx, c.lab, s, readiness{c.name + " takes writes", func(*process) (bool, error) {
		err := c.Put(ctx, "pgsteer-lab/started", "")
		return err == nil, err
	}})
}

// Stop ends Consul by SIGTERM. If ctx ends first, it is killed and an error
// returned.
func (c *Consul) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.process().stop(ctx, syscall.SIGTERM)
}

// Kill ends Consul by SIGKILL.
func (c *Consul) Kill() error { return c.process().kill() }

// Freeze stops Consul by SIGSTOP: connections stay open, nothing answers.
func (c *Consul) Freeze() error { return c.process().freeze() }

// Thaw undoes Freeze.
func (c *Consul) Thaw() error { return c.process().thaw() }

// ErrNoKey says that a key is not in Consul.
var ErrNoKey = errors.New("no such key")

// Get returns the value of a key. If there is none, the error is ErrNoKey.
func (c *Consul) Get(ctx context.Context, key string) (string, error) {
	return c.kv(ctx, http.MethodGet, key, "?raw", "")
}

// Put sets the value of a key.
func (c *Consul) Put(ctx context.Context, key, value string) error {
	out, err := c.kv(ctx, http.MethodPut, key, "", value)
	if err == nil && out != "true" {
		err = fmt.Errorf("lab: %s: PUT %s: %s", c.name, key, out)
	}
	return err
}

// PutAll sets the values of many keys, sixty-four in a transaction.
func (c *Consul) PutAll(ctx context.Context, values map[string]string) error {
	type op struct {
		KV struct {
			Verb, Key string
			Value     []byte
		}
	}
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(values)), 64) {
		ops := make([]op, len(keys))
		for i, key := range keys {
			ops[i].KV.Verb, ops[i].KV.Key, ops[i].KV.Value = "set", key, []byte(values[key])
		}
		body, err := json.Marshal(ops)
		if err != nil {
			return fmt.Errorf("lab: %s: %w", c.name, err)
		}
		if _, err := c.API(ctx, http.MethodPut, "txn", string(body)); err != nil {
			return err
		}
	}
	return nil
}

// Delete removes a key, and all keys below it if it ends with a slash.
func (c *Consul) Delete(ctx context.Context, key string) error {
	query := ""
	if strings.HasSuffix(key, "/") {
		query = "?recurse"
	}
	_, err := c.kv(ctx, http.MethodDelete, key, query, "")
	return err
}

func (c *Consul) kv(ctx context.Context, method, key, query, body string) (string, error) {
	u := url.URL{Scheme: "http", Host: c.Addr(), Path: "/v1/kv/" + key}
	out, status, err := c.request(ctx, method, u.String()+query, body)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusNotFound:
		return "", fmt.Errorf("lab: %s: %s %s: %w", c.name, method, key, ErrNoKey)
	case status != http.StatusOK:
		return "", fmt.Errorf("lab: %s: %s %s: status %d: %s", c.name, method, key, status, out)
	}
	return out, nil
}

// API asks Consul's HTTP API, with Token: path is what follows /v1/, body is
// JSON. Any status but 200 is an error.
func (c *Consul) API(ctx context.Context, method, path, body string) (string, error) {
	out, status, err := c.request(ctx, method, "http://"+c.Addr()+"/v1/"+path, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("lab: %s: %s %s: status %d: %s", c.name, method, path, status, out)
	}
	return out, err
}

func (c *Consul) request(ctx context.Context, method, url, body string) (out string, status int, err error) {
	return requestWith(ctx, http.Header{"X-Consul-Token": {c.Token()}}, call{method, url, body})
}

// request asks once, on a connection of its own, within ctx.
func request(ctx context.Context, method, url, body string) (out string, status int, err error) {
	return requestWith(ctx, http.Header{}, call{method, url, body})
}

// call is a request over HTTP.
type call struct{ method, url, body string }

func requestWith(ctx context.Context, header http.Header, q call) (out string, status int, err error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, q.url, bytes.NewReader([]byte(q.body)))
	if err != nil {
		return "", 0, fmt.Errorf("lab: %w", err)
	}
	req.Header = header
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", 0, fmt.Errorf("lab: %s %s: %w", q.method, q.url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", 0, fmt.Errorf("lab: %s %s: %w", q.method, q.url, err)
	}
	return string(b), resp.StatusCode, nil
}
