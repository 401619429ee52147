package config

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Config is everything an agent is told. Default has the meaning of each
// field that a file leaves out.
type Config struct {
	// StateDir is the folder of the saved state; empty: see StateFolder.
	StateDir string `yaml:"state_dir" type:"path"`
	Log      Log    `yaml:"log"`
	Listen   Listen `yaml:"listen"`
	Health   Health `yaml:"health"`
	// AgentCheck shapes what HAProxy's agent checks are answered.
	AgentCheck AgentCheck `yaml:"agent_check"`
	// Local is the node on this host, for paths such as /primary that name none.
	Local NodeRef `yaml:"local"`
	// Zone is where this host stands; read pools prefer nodes tagged with it.
	Zone   string `yaml:"zone"`
	Consul Consul `yaml:"consul"`
	// Maintenance is where operators' words are kept, and who may say them.
	Maintenance Maintenance `yaml:"maintenance"`
	// Mesh is how clusters are published into Consul.
	Mesh Mesh `yaml:"mesh"`
	// Postgres is what clusters begin with. It stands before Clusters, since
	// fields are decoded in this order, whatever the order in the file.
	Postgres  Postgres   `yaml:"postgres"`
	Clusters  Clusters   `yaml:"clusters"`
	HAProxy   HAProxy    `yaml:"haproxy"`
	Envoy     Envoy      `yaml:"envoy"`
	Templates []Template `yaml:"templates"`
	// PgBouncers are told over their consoles.
	PgBouncers []PgBouncer `yaml:"pgbouncers"`
}

// Log says how much is logged and in which form.
type Log struct {
	Level  LogLevel  `yaml:"level"`
	Format LogFormat `yaml:"format"`
}

// Listen has the agent's own listeners; an empty address switches one off.
type Listen struct {
	AgentCheck ListenAddress `yaml:"agent_check"` // HAProxy's agent-check
	Health     ListenAddress `yaml:"health"`      // Patroni's health paths
	HealthTLS  TLSListener   `yaml:"health_tls"`  // the same over TLS
	Status     ListenAddress `yaml:"status"`      // /livez, /readyz, /metrics, status
	StatusTLS  TLSListener   `yaml:"status_tls"`  // the same over TLS
	// Socket serves the same as Status on a UNIX socket; empty: see StatusSocket.
	Socket     string        `yaml:"socket" type:"listen socket"`
	SocketMode SocketMode    `yaml:"socket_mode"` // who may ask there
	XDS        ListenAddress `yaml:"xds"`         // Envoy's subscription, gRPC
	RefusalTLS RefusalTLS    `yaml:"refusal_tls"` // for clients that are refused
}

// Consul says how the local Consul agent is reached.
type Consul struct {
	Address    string `yaml:"address"` // http://, https:// or unix://
	TokenFile  string `yaml:"token_file" type:"file"`
	Datacenter string `yaml:"datacenter"` // empty: the agent's own
	// Namespace and Partition are those of Consul Enterprise; empty: those of the
	// token and of the agent.
	Namespace  string `yaml:"namespace"`
	Partition  string `yaml:"partition"`
	CAFile     string `yaml:"ca_file" type:"file"`
	CertFile   string `yaml:"cert_file" type:"file"`
	KeyFile    string `yaml:"key_file" type:"file"`
	ServerName string `yaml:"server_name"`

	// Token is the content of TokenFile; only Load fills it.
	Token Secret `yaml:"-"`
}

// Postgres says how nodes are probed.
type Postgres struct {
	User         string  `yaml:"user"`
	Database     string  `yaml:"database"`
	PasswordFile string  `yaml:"password_file" type:"file"`
	SSLMode      SSLMode `yaml:"sslmode"`
	SSLRootCert  string  `yaml:"sslrootcert" type:"file"`
	SSLCert      string  `yaml:"sslcert" type:"file"`
	SSLKey       string  `yaml:"sslkey" type:"file"`
	// Interval is the time from one question to the next.
	Interval       time.Duration `yaml:"interval"`
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	QueryTimeout   time.Duration `yaml:"query_timeout"`
	// LoginEvery is the time between fresh logins, which prove the postmaster.
	LoginEvery time.Duration `yaml:"login_every"`
	// DNSTTLMax is how long the address of a node that has a DNS name is believed.
	DNSTTLMax time.Duration `yaml:"dns_ttl_max"`
	// WriteProbe is a table, schema.table, to which the writer must be able to
	// write a row; empty: it is not tried.
	WriteProbe string `yaml:"write_probe"`

	// Password is the content of PasswordFile; only Load fills it.
	Password Secret `yaml:"-"`
}

// HAProxy lists the sockets of the HAProxy processes that are told at once.
type HAProxy struct {
	// Sockets are paths of UNIX sockets or host:port on loopback.
	Sockets []string `yaml:"sockets" type:"socket"`
	// MasterSockets are those of HAProxy's master processes (-S), beside the
	// master_socket of templates.
	MasterSockets []string      `yaml:"master_sockets" type:"socket"`
	Timeout       time.Duration `yaml:"timeout"` // for one command and its answer
	// File shapes the file of the built-in template.
	File HAProxyFile `yaml:"file"`
}

// Envoy shapes what is served over xDS.
type Envoy struct {
	// ListenHost replaces the host of the pools' listen; the ports stay.
	ListenHost     string        `yaml:"listen_host"`
	ConnectTimeout time.Duration `yaml:"connect_timeout"` // Envoy's, to a node
	// CheckAddress is where Envoy reaches listen.health. Empty: at listen.health.
	CheckAddress  ListenAddress `yaml:"check_address"`
	CheckInterval time.Duration `yaml:"check_interval"`
	Release       string        `yaml:"release"` // another text serves listeners that were held back
	// Files is a folder into which everything is written for Envoys that read files.
	Files string   `yaml:"files" type:"path"`
	TLS   EnvoyTLS `yaml:"tls"` // of listen.xds
	// ServerCAFile makes Envoy speak TLS from the first byte to the nodes.
	ServerCAFile string `yaml:"server_ca_file" type:"file"`
	ServerName   string `yaml:"server_name"` // in the nodes' certificates, with ServerCAFile

	// ServerCA is the content of ServerCAFile; only Load fills it.
	ServerCA string `yaml:"-"`
}

// Default returns the configuration of a file that says nothing. It has no
// cluster yet and is therefore not valid.
func Default() *Config {
	return &Config{
		Log: Log{Level: LevelInfo, Format: FormatText},
		Listen: Listen{
			AgentCheck: "127.0.0.1:7431",
			Health:     "127.0.0.1:7432",
			Status:     "127.0.0.1:7433",
			XDS:        "127.0.0.1:7434",
			SocketMode: 0o666,
		},
		AgentCheck:  AgentCheck{AdminWords: AdminNever},
		Health:      Health{Compat: HealthStrict, DrainStatus: DrainUnavailable},
		Consul:      Consul{Address: "http://127.0.0.1:8500"},
		Maintenance: Maintenance{Store: StoreFile, Key: "pgsteer/maintenance"},
		Mesh:        defaultMesh(),
		Postgres: Postgres{
			User:           "pgsteer",
			Database:       "postgres",
			SSLMode:        SSLPrefer,
			Interval:       time.Second,
			ConnectTimeout: 800 * time.Millisecond,
			QueryTimeout:   800 * time.Millisecond,
			LoginEvery:     5 * time.Second,
			DNSTTLMax:      30 * time.Second,
		},
		HAProxy: HAProxy{Timeout: 2 * time.Second, File: defaultHAProxyFile()},
		Envoy:   Envoy{ConnectTimeout: time.Second, CheckInterval: 200 * time.Millisecond, TLS: EnvoyTLS{NodeIdentity: IdentityCertificate}},
	}
}

// StateFolder is where the agent keeps its state: state_dir, else the folder
// that systemd made for the unit ($STATE_DIRECTORY), else pgsteer below
// $XDG_STATE_HOME or ~/.local/state, else /var/lib/pgsteer. Never the present
// folder: the memory of timelines must not depend on where somebody stood.
func (c *Config) StateFolder(getenv func(string) string) string {
	if c.StateDir != "" {
		return c.StateDir
	}
	// systemd lists several folders with colons when a unit names several.
	if first, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); first != "" {
		return first
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pgsteer")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "pgsteer")
	}
	return "/var/lib/pgsteer"
}

// SocketOff is the listen.socket of an agent without one.
const SocketOff = "off"

// DefaultSocket is where the packaged systemd unit has the agent's socket.
const DefaultSocket = "/run/pgsteer/pgsteer.sock"

// StatusSocket is the path of the agent's UNIX socket: listen.socket, else
// pgsteer.sock in the folder that systemd made for the unit ($RUNTIME_DIRECTORY).
// Empty: there is none.
func (c *Config) StatusSocket(getenv func(string) string) string {
	if c.Listen.Socket == SocketOff {
		return ""
	}
	if c.Listen.Socket != "" {
		return c.Listen.Socket
	}
	if first, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); first != "" {
		return filepath.Join(first, filepath.Base(DefaultSocket))
	}
	return ""
}

// Cluster returns a cluster by name.
func (c *Config) Cluster(name string) (Cluster, bool) {
	i := slices.IndexFunc(c.Clusters, func(cl Cluster) bool { return cl.Name == name })
	if i < 0 {
		return Cluster{}, false
	}
	return c.Clusters[i], true
}

// ClusterNames returns the names of all clusters, in the file's order.
func (c *Config) ClusterNames() []string {
	names := make([]string, len(c.Clusters))
	for i, cl := range c.Clusters {
		names[i] = cl.Name
	}
	return names
}

// Policy returns what engine.Decide needs to know of a cluster, and the default
// policy for a cluster that is not configured.
func (c *Config) Policy(cluster string) topology.Policy {
	cl, ok := c.Cluster(cluster)
	if !ok {
		return topology.DefaultPolicy()
	}
	return cl.policy(c.Zone)
}

// UsesConsul reports whether a cluster, the maintenance records or what is published
// need Consul, so that an agent without any of them never asks there.
func (c *Config) UsesConsul() bool {
	return c.Maintenance.Store == StoreConsul || len(c.Published()) > 0 || slices.ContainsFunc(c.Clusters, Cluster.UsesConsul)
}

// EnvoyListen is the address at which Envoy offers a pool: the pool's listen
// with envoy.listen_host in place of its host. Empty: no listener.
func (c *Config) EnvoyListen(p Pool) ListenAddress {
	if p.Listen.Off() || c.Envoy.ListenHost == "" {
		return p.Listen
	}
	return p.Listen.withHost(c.Envoy.ListenHost)
}
