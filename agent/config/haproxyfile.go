package config

import (
	"fmt"
	"time"
)

// HAProxyFile shapes the file that the built-in template makes. Of durations,
// those that HAProxy cannot hold are refused.
type HAProxyFile struct {
	MaxConn       int `yaml:"maxconn"`        // of the process; 0: HAProxy's own limit
	ServerMaxConn int `yaml:"server_maxconn"` // to one server; 0: no limit
	// StatsListen is where the statistics page is served; empty: nowhere.
	StatsListen ListenAddress `yaml:"stats_listen"`
	// BindCertificate makes the listeners speak TLS from the first byte.
	BindCertificate string `yaml:"bind_certificate" type:"file"`
	// ServerCAFile makes HAProxy speak TLS from the first byte to the nodes.
	ServerCAFile string          `yaml:"server_ca_file" type:"file"`
	Timeouts     HAProxyTimeouts `yaml:"timeouts"`
	// CheckInterval, Fall and Rise are those of the TCP check of a node's port.
	CheckInterval time.Duration `yaml:"check_interval"`
	Fall          int           `yaml:"fall"`
	Rise          int           `yaml:"rise"`
	AgentInterval time.Duration `yaml:"agent_interval"` // of the agent-check
	// HardStopAfter ends a worker that a reload replaced, with its sessions.
	HardStopAfter time.Duration `yaml:"hard_stop_after"`
	// MaxReloads ends workers that are older than this many reloads.
	MaxReloads int `yaml:"max_reloads"`
}

// HAProxyTimeouts are HAProxy's own.
type HAProxyTimeouts struct {
	Connect time.Duration `yaml:"connect"`
	Client  time.Duration `yaml:"client"`
	Server  time.Duration `yaml:"server"`
	Check   time.Duration `yaml:"check"`
	Queue   time.Duration `yaml:"queue"`
	TCPUser time.Duration `yaml:"tcp_user"`
}

func defaultHAProxyFile() HAProxyFile {
	return HAProxyFile{
		Timeouts: HAProxyTimeouts{
			Connect: 2 * time.Second, Client: 30 * time.Minute, Server: 30 * time.Minute,
			Check: time.Second, Queue: time.Second, TCPUser: 30 * time.Second,
		},
		CheckInterval: 2 * time.Second, Fall: 5, Rise: 1, AgentInterval: 500 * time.Millisecond,
		HardStopAfter: 30 * time.Minute, MaxReloads: 50,
	}
}

func (h HAProxyFile) check(s scope) {
	t := s.in("timeouts")
	for _, d := range []struct {
		in    scope
		key   string
		value time.Duration
	}{
		{t, "connect", h.Timeouts.Connect},
		{t, "client", h.Timeouts.Client},
		{t, "server", h.Timeouts.Server},
		{t, "check", h.Timeouts.Check},
		{t, "queue", h.Timeouts.Queue},
		{t, "tcp_user", h.Timeouts.TCPUser},
		{s, "check_interval", h.CheckInterval},
		{s, "agent_interval", h.AgentInterval},
		{s, "hard_stop_after", h.HardStopAfter},
	} {
		d.in.positive(d.key, d.value)
		if err := checkHAProxyTime(d.value); err != nil {
			d.in.fault(d.key, "%v", err)
		}
	}
	for _, n := range []struct {
		key   string
		value int
	}{{"fall", h.Fall}, {"rise", h.Rise}, {"max_reloads", h.MaxReloads}} {
		if n.value == 0 {
			s.fault(n.key, "%s must be 1 at least", n.key)
		}
	}
}

// checkHAProxyTime refuses what HAProxy would: it counts milliseconds in 31 bits,
// and what is not whole milliseconds would be rounded in silence.
func checkHAProxyTime(d time.Duration) error {
	const longest = 24 * 24 * time.Hour
	if d > longest || d%time.Millisecond != 0 {
		return fmt.Errorf("HAProxy takes whole milliseconds up to %v", longest)
	}
	return nil
}
