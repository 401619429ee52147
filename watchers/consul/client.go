package consul

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// ClientOptions say how to reach one Consul agent.
type ClientOptions struct {
	// Address is host:port, or an address with one of the schemes http://,
	// https:// (which may carry a path prefix) and unix://. Empty: 127.0.0.1:8500.
	Address string
	// TokenFile holds the ACL token; it is read again when it changes. Empty: no
	// token is sent. A file that cannot be read is no fault of NewClient but of
	// each request, since the token may be delivered later.
	TokenFile string
	// Datacenter to ask; empty: the agent's own.
	Datacenter string
	// Namespace and Partition are those of Consul Enterprise; empty: the token's
	// own namespace, and the agent's own partition. Any other Consul refuses them.
	Namespace, Partition string
	// CAFile, CertFile and KeyFile are PEM files, read again when they change.
	// Any of them, or ServerName, means TLS even without https:// in Address.
	// Without CAFile the system's roots count. CertFile and KeyFile go together.
	CAFile, CertFile, KeyFile string
	// ServerName is the name in Consul's certificate; empty: the host of Address.
	ServerName string
	// Transport replaces the connection to Consul, for tests. It must obey the
	// context of a request.
	Transport http.RoundTripper
	// Logger gets a line when a changed TLS or token file cannot be used; nil
	// discards it.
	Logger *slog.Logger
}

// Client asks one Consul agent. It may be shared by any number of watchers and
// is safe for concurrent use.
//
// Many watchers of one client cost less than as many clients: above a hundred of
// them their reads are put together (see the package's comment).
type Client struct {
	api    *api.Client
	http   *http.Client
	ep     endpoint
	token  *tokenFile
	dc     string
	tenant tenant
	fleet  *fleet
}

// tenant is a part of a Consul Enterprise; the zero value is no particular one.
type tenant struct{ namespace, partition string }

// NewClient prepares a client; it asks nothing yet. It fails when the address
// cannot be understood or a TLS file cannot be used.
func NewClient(o ClientOptions) (*Client, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ep, err := parseEndpoint(o)
	if err != nil {
		return nil, err
	}
	rt := o.Transport
	if rt == nil {
		if rt, err = newTransport(ep, o); err != nil {
			return nil, fmt.Errorf("consul at %s: %w", ep.display, err)
		}
	}
	hc := &http.Client{Transport: guard{next: rt}, CheckRedirect: noRedirect}
	ac, err := api.NewClient(&api.Config{
		Address: ep.host, Scheme: ep.scheme, PathPrefix: ep.prefix,
		HttpClient: hc, Transport: &http.Transport{}, // unused; set so that the library builds none
		Token: noToken, Namespace: cmp.Or(o.Namespace, noTenant), Partition: cmp.Or(o.Partition, noTenant),
	})
	if err != nil {
		return nil, fmt.Errorf("consul at %s: %w", ep.display, err)
	}
	c := &Client{api: ac, http: hc, ep: ep, dc: o.Datacenter, tenant: tenant{o.Namespace, o.Partition}}
	c.fleet = newFleet(c)
	if o.TokenFile != "" {
		c.token = &tokenFile{path: o.TokenFile, log: o.Logger}
	}
	return c, nil
}

// Address is where the agent is asked, for people.
func (c *Client) Address() string { return c.ep.display }

// KV gives access to the key-value store. Use it with options from Options.
func (c *Client) KV() *api.KV { return c.api.KV() }

// Close drops idle connections. Requests under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Consistency says which server may answer a read.
type Consistency uint8

// The consistencies.
const (
	// Default lets the leader answer; it may be wrong for the instant in which
	// it has been replaced without knowing.
	Default Consistency = iota
	// Consistent makes the leader ask a quorum first.
	Consistent
	// Stale lets any server answer, whatever its state. Only the headers of the
	// answer tell how old it may be, so whoever asks so must look at them.
	Stale
)

// Options returns the options of one read: datacenter, current token, context.
// The error says that the token file cannot be read.
func (c *Client) Options(ctx context.Context, mode Consistency) (*api.QueryOptions, error) {
	q := &api.QueryOptions{Datacenter: c.dc, RequireConsistent: mode == Consistent, AllowStale: mode == Stale}
	if c.token != nil {
		t, err := c.token.read()
		if err != nil {
			return nil, err
		}
		q.Token = t
	}
	return q.WithContext(ctx), nil
}

// who describes the agent and the credential, for error texts.
func (c *Client) who() string {
	if c.token == nil {
		return "Consul at " + c.ep.display + " without a token"
	}
	return "Consul at " + c.ep.display + " with the token of " + c.token.path
}

// endpoint is a parsed ClientOptions.Address.
type endpoint struct {
	scheme, host, prefix string
	socket               string // path of a Unix socket
	display              string
	tls                  bool
}

func parseEndpoint(o ClientOptions) (endpoint, error) {
	addr := o.Address
	if addr == "" {
		addr = "127.0.0.1:8500"
	}
	wantTLS := o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" || o.ServerName != ""
	ep := endpoint{scheme: "http", display: addr}
	scheme, rest, ok := strings.Cut(addr, "://")
	if !ok {
		scheme, rest = "http", addr
	}
	switch scheme {
	case "http":
		ep.tls = wantTLS
	case "https":
		ep.tls = true
	case "unix":
		ep.socket, ep.host = rest, "localhost"
		return ep, nil
	default:
		return ep, fmt.Errorf("address %q of Consul: scheme %q is none of http, https, unix", addr, scheme)
	}
	if ep.tls {
		ep.scheme = "https"
	}
	host, prefix, _ := strings.Cut(rest, "/")
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		ep.prefix = "/" + prefix
	}
	if host == "" || strings.ContainsAny(host, "@?# ") {
		return ep, fmt.Errorf("address %q of Consul has no host:port", addr)
	}
	ep.host = host
	return ep, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// The deadlines of connecting; a read has its own on top of them.
const (
	dialTimeout  = 3 * time.Second
	keepAlive    = 10 * time.Second // between the last byte and the first probe
	keepAliveTry = 5 * time.Second  // between probes
	keepAliveMax = 3                // unanswered probes until the connection counts as dead
)

// maxConns bounds the connections of a client: a hundred blocking queries and
// the reads beside them. Consul counts one that was given up for a moment more.
const maxConns = 130
