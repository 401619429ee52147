package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Secret holds a password or token. However it is printed, logged or encoded,
// it shows as ****; only Reveal gives it away. Secrets compare with ==.
type Secret struct{ value string }

// NewSecret wraps a secret text.
func NewSecret(s string) Secret { return Secret{s} }

// Reveal returns the secret itself, for the one call that needs it.
func (s Secret) Reveal() string { return s.value }

// Equal reports whether two secrets are the same.
func (s Secret) Equal(o Secret) bool { return s == o }

// Empty reports whether there is none.
func (s Secret) Empty() bool { return s.value == "" }

// String returns **** for a secret and nothing for none.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}
	return "****"
}

// GoString keeps %#v from printing the field.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// LogValue keeps the secret out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the secret out of JSON and other encodings.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML keeps the secret out of YAML.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogLevel is the least severity that is logged.
type LogLevel string

// The log levels.
const (
	LevelDebug LogLevel = "debug"
	LevelInfo  LogLevel = "info"
	LevelWarn  LogLevel = "warn"
	LevelError LogLevel = "error"
)

// Level translates for slog; an unknown word is info.
func (l LogLevel) Level() slog.Level {
	switch l {
	case LevelDebug:
		return slog.LevelDebug
	case LevelWarn:
		return slog.LevelWarn
	case LevelError:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// LogFormat is the form of a log line.
type LogFormat string

// The log formats.
const (
	FormatText LogFormat = "text"
	FormatJSON LogFormat = "json"
)

// SSLMode is libpq's sslmode.
type SSLMode string

// libpq's modes, with its meanings.
const (
	SSLDisable    SSLMode = "disable"
	SSLAllow      SSLMode = "allow"
	SSLPrefer     SSLMode = "prefer"
	SSLRequire    SSLMode = "require"
	SSLVerifyCA   SSLMode = "verify-ca"
	SSLVerifyFull SSLMode = "verify-full"
)

// PatroniSource is where Patroni's word is heard.
type PatroniSource string

// The places.
const (
	SourceConsul PatroniSource = "consul" // its keys in Consul
	SourceREST   PatroniSource = "rest"   // its members' REST interface, for every other store
)

// Builtin names a template that comes with pgsteer.
type Builtin string

// The built-in templates.
const (
	BuiltinHAProxy   Builtin = "haproxy"   // a whole haproxy.cfg
	BuiltinPgBouncer Builtin = "pgbouncer" // the section [databases] of one PgBouncer
)

// words lists what an enumeration allows, nil for a type that is none.
func words(v any) []string {
	switch v.(type) {
	case LogLevel:
		return texts(LevelDebug, LevelInfo, LevelWarn, LevelError)
	case LogFormat:
		return texts(FormatText, FormatJSON)
	case SSLMode:
		return texts(SSLDisable, SSLAllow, SSLPrefer, SSLRequire, SSLVerifyCA, SSLVerifyFull)
	case PatroniSource:
		return texts(SourceConsul, SourceREST)
	case NodeNames:
		return texts(NamedByNode, NamedByID, NamedByMeta)
	case HealthCompat:
		return texts(HealthStrict, HealthPatroni3, HealthPatroni4)
	case DrainStatus:
		return texts(DrainUnavailable, DrainNotFound)
	case AdminWords:
		return texts(AdminNever, AdminAlways)
	case MaintenanceStore:
		return texts(StoreFile, StoreConsul)
	case MeshMode:
		return texts(MeshOff, MeshLocal, MeshExternal)
	case WhenDead:
		return texts(DeadCritical, DeadStay)
	case Builtin:
		return texts(BuiltinHAProxy, BuiltinPgBouncer)
	case topology.AuthorityKind:
		return texts(topology.AuthorityNone, topology.AuthorityPatroni, topology.AuthorityMonitor)
	case topology.AuthorityLost:
		return texts(topology.LostHold, topology.LostSQLOnly)
	case topology.Mode:
		return texts(topology.ModeWrite, topology.ModeRead)
	case topology.Fallback:
		return texts(topology.FallbackNone, topology.FallbackPrimary, topology.FallbackStale)
	case topology.Role:
		return texts(topology.RoleSync, topology.RoleAsync, topology.RoleQuorum, topology.RoleStandbyLeader, topology.RoleDelayed)
	case topology.PortCheck:
		return texts(topology.PortCheckNone, topology.PortCheckConnect, topology.PortCheckPgBouncer)
	case topology.WriteStall:
		return texts(topology.StallAlarm, topology.StallDrain)
	case EnvoySessions:
		return texts(EnvoyDrain, EnvoyHealthCheck, EnvoyKeep)
	case NodeIdentity:
		return texts(IdentityCertificate, IdentityAny)
	case sessionsWord:
		return texts(sessionsKeep, sessionsEnd)
	}
	return nil
}

func texts[T ~string](vs ...T) []string {
	out := make([]string, len(vs))
	for i, v := range vs {
		out[i] = string(v)
	}
	return out
}

// NodeRef names one node of one cluster, written cluster/node. Zero: none.
type NodeRef struct{ Cluster, Node string }

// String writes cluster/node, and nothing for none.
func (r NodeRef) String() string {
	if r == (NodeRef{}) {
		return ""
	}
	return r.Cluster + "/" + r.Node
}

// MarshalText writes String.
func (r NodeRef) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads cluster/node; an empty text is none.
func (r *NodeRef) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*r = NodeRef{}
		return nil
	}
	cluster, node, ok := strings.Cut(string(b), "/")
	if !ok {
		return fmt.Errorf("%q is not cluster/node, such as main/n1", b)
	}
	for _, name := range []string{cluster, node} {
		if err := topology.CheckName(name); err != nil {
			return fmt.Errorf("%q is not cluster/node: %w", b, err)
		}
	}
	*r = NodeRef{Cluster: cluster, Node: node}
	return nil
}

// FileMode is the permission bits of a file, written as in chmod: "0640".
type FileMode uint32

// String writes four octal digits.
func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText writes String.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads three octal digits, with or without a 0 before them.
// Modes that let everybody write, or keep the owner from reading, are refused:
// a rendered file decides where connections go.
func (m *FileMode) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 8, 32)
	if err != nil || len(b) < 3 || v > 0o777 {
		return fmt.Errorf("%q is no file mode such as 0640", b)
	}
	if v&0o400 == 0 || v&0o002 != 0 {
		return fmt.Errorf("mode %s is refused: the owner must read the file, and not everybody may write it", b)
	}
	*m = FileMode(v)
	return nil
}

// SocketMode is the permission bits of a UNIX socket: who may write to it may ask.
type SocketMode uint32

// String writes four octal digits.
func (m SocketMode) String() string { return FileMode(m).String() }

// MarshalText writes String.
func (m SocketMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes the three modes that make sense for a socket.
func (m *SocketMode) UnmarshalText(b []byte) error {
	switch v, err := strconv.ParseUint(string(b), 8, 32); {
	case err == nil && (v == 0o600 || v == 0o660 || v == 0o666):
		*m = SocketMode(v)
		return nil
	default:
		return fmt.Errorf("%q is none of 0600 (the agent's own user may ask), 0660 (its group too), 0666 (everybody on this host)", b)
	}
}

// ListenAddress is where a listener binds: host:port with an IP address or a
// name, :port for every interface. Port 0 takes any free one. Empty: off.
type ListenAddress string

// Off reports whether there is no listener.
func (a ListenAddress) Off() bool { return a == "" }

// HostPort splits the address; both are zero when it is off. An empty host
// stands for every interface.
func (a ListenAddress) HostPort() (host string, port uint16) {
	if a.Off() {
		return "", 0 // most pools' are, and an error for each pair of them costs
	}
	host, text, err := net.SplitHostPort(string(a))
	if err != nil {
		return "", 0
	}
	p, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0
	}
	return host, uint16(p)
}

// UnmarshalText reads an address; an empty text and the word off mean none.
func (a *ListenAddress) UnmarshalText(b []byte) error {
	s := string(b)
	if s == "" || s == "off" {
		*a = ""
		return nil
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not host:port (an IPv6 address needs brackets; off switches a listener off)", s)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("%q: port %q is not a number from 0 to 65535", s, text)
	}
	if err := checkListenHost(host); err != nil {
		return fmt.Errorf("%q: %w", s, err)
	}
	*a = ListenAddress(net.JoinHostPort(host, strconv.FormatUint(port, 10)))
	return nil
}

func checkListenHost(host string) error {
	if host == "" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() && ip.Zone() == "" {
		return nil
	}
	return topology.Address{Host: host, Port: 1}.Check()
}

func (a ListenAddress) withHost(host string) ListenAddress {
	_, port := a.HostPort()
	return ListenAddress(net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// overlaps reports whether two listeners cannot both bind: the same port at the
// same host, or at every interface.
func (a ListenAddress) overlaps(b ListenAddress) bool {
	ah, ap := a.HostPort()
	bh, bp := b.HostPort()
	if ap != bp || ap == 0 {
		return false
	}
	return everywhere(ah) || everywhere(bh) || ah == bh
}

func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}
