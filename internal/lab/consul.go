package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Consul is a single Consul server (not in -dev mode, so its data survive a
// restart). Its HTTP and gRPC ports and the service mesh are enabled; DNS, TLS
// and the WAN are not.
type Consul struct {
	lab  *Lab
	bin  string
	name string
	dir  string
	http int
	grpc int

	slot
}

// Consul starts a Consul server and returns when it has elected itself and
// takes writes, after about a second.
func (l *Lab) Consul(ctx context.Context) (*Consul, error) {
	bin, err := findConsul()
	if err != nil {
		return nil, err
	}
	ports, err := l.freePorts(4)
	if err != nil {
		return nil, err
	}
	name := l.unique("consul")
	c := &Consul{lab: l, bin: bin, name: name, dir: filepath.Join(l.dir, name), http: ports[0], grpc: ports[1]}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := c.writeConfig(ports[2], ports[3]); err != nil {
		return nil, err
	}
	l.onClose(func() error { return c.process().close(syscall.SIGTERM) })
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Consul) writeConfig(serf, server int) error {
	type m = map[string]any
	b, err := json.MarshalIndent(m{
		"node_name": "lab", "server": true, "bootstrap_expect": 1, "data_dir": filepath.Join(c.dir, "data"),
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "log_level": "info",
		"disable_update_check": true, "leave_on_terminate": false,
		"connect": m{"enabled": true},
		"ports": m{
			"http": c.http, "grpc": c.grpc, "serf_lan": serf, "server": server,
			"https": -1, "dns": -1, "serf_wan": -1, "grpc_tls": -1,
		},
		"performance": m{"raft_multiplier": 1},
		// A server that is alone needs no patience before it elects itself.
		"consul": m{"raft": m{"election_timeout": "100ms", "heartbeat_timeout": "100ms", "leader_lease_timeout": "50ms"}},
	}, "", "\t")
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

// GRPCAddr returns the address for Envoy's configuration, "127.0.0.1:port".
func (c *Consul) GRPCAddr() string { return loopback(c.grpc) }

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
	out, status, err := request(ctx, method, u.String()+query, body)
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

// request asks once, on a connection of its own, within ctx.
func request(ctx context.Context, method, url, body string) (out string, status int, err error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", 0, fmt.Errorf("lab: %w", err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", 0, fmt.Errorf("lab: %s %s: %w", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", 0, fmt.Errorf("lab: %s %s: %w", method, url, err)
	}
	return string(b), resp.StatusCode, nil
}
