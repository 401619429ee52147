package xds

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// BootstrapOptions says for which Envoy a bootstrap is.
type BootstrapOptions struct {
	// NodeID names the Envoy in our status and log. Zero: "envoy".
	NodeID string
	// Cluster is Envoy's own service cluster, for its statistics. The name of one of
	// pgsteer's asks for that one alone, without Clusters. Zero: "pgsteer".
	Cluster string
	// Zone in which this Envoy is. Its read pools then prefer the nodes of that zone.
	// Empty: none in particular.
	Zone string
	// Clusters are the database clusters this Envoy shall know. None: all.
	Clusters []string
	// Servers are where agents serve Envoys. Envoy subscribes to one, and to another
	// when that is away. None: 127.0.0.1:7434.
	Servers []topology.Address
	// Files is the folder in which an agent writes everything. Envoy then reads it
	// and subscribes to nobody. Empty: it subscribes.
	Files string
	// TLS of the subscription. Zero: in the clear.
	TLS BootstrapTLS
	// AdminAddress is where Envoy's admin interface listens. Zero: it has none.
	AdminAddress topology.Address
}

// BootstrapTLS is how an Envoy speaks TLS to its agents. Files are read by Envoy.
type BootstrapTLS struct {
	CAFile            string // of the agents' certificates; empty: no TLS
	CertFile, KeyFile string // Envoy's own; empty: none
	// Secrets is a folder with what SecretFiles returns. Envoy then takes files that
	// were moved into place for its next connection. Empty: it reads them when it starts.
	Secrets string
	// ServerName must be in the agents' certificates. Needed with CAFile.
	ServerName string
}

func (t BootstrapTLS) text() string {
	if t.CAFile == "" {
		return ""
	}
	kind, own := "DNS", ""
	if _, literal := (topology.Address{Host: t.ServerName}).IP(); literal {
		kind = "IP_ADDRESS"
	}
	text := bootstrapTLS
	switch {
	case t.Secrets != "":
		text = bootstrapTLSHead + bootstrapTLSFollowed
		if t.CertFile != "" {
			own = "\n          tls_certificate_sds_secret_configs: [" + t.byFile(secretOwn) + "]"
		}
	case t.CertFile != "":
		own = fmt.Sprintf("\n          tls_certificates: [{certificate_chain: {filename: %s}, private_key: {filename: %s}}]",
			strconv.Quote(t.CertFile), strconv.Quote(t.KeyFile))
	}
	return strings.NewReplacer("${name}", strconv.Quote(t.ServerName), "${kind}", kind, "${ca}", strconv.Quote(t.CAFile), "${own}", own,
		"${roots}", t.byFile(secretRoots)).Replace(text)
}

const bootstrapTLSHead = `    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: ${name}
        common_tls_context:
          alpn_protocols: [h2]${own}
`

const bootstrapTLS = bootstrapTLSHead + `          validation_context:
            trusted_ca: {filename: ${ca}}
            match_typed_subject_alt_names: [{san_type: ${kind}, matcher: {exact: ${name}}}]
`

// bootstrapTLSFollowed has the certificates in files that Envoy follows.
const bootstrapTLSFollowed = `          combined_validation_context:
            validation_context_sds_secret_config: ${roots}
            default_validation_context:
              match_typed_subject_alt_names: [{san_type: ${kind}, matcher: {exact: ${name}}}]
`

// Bootstrap returns the configuration file of an Envoy that subscribes to this
// agent, with the command line it needs in its head.
func Bootstrap(o BootstrapOptions) string {
	if o.NodeID == "" {
		o.NodeID = "envoy"
	}
	if o.Cluster == "" {
		o.Cluster = "pgsteer"
	}
	if len(o.Servers) == 0 {
		o.Servers = []topology.Address{{Host: "127.0.0.1", Port: 7434}}
	}
	discovery, servers := "STATIC", make([]string, len(o.Servers))
	for i, s := range o.Servers {
		if _, literal := s.IP(); !literal {
			discovery = "STRICT_DNS"
		}
		servers[i] = fmt.Sprintf("\n        - endpoint: {address: {%s}}", socket(s))
	}
	text := bootstrap
	if o.Files != "" {
		text = bootstrapFiles
	}
	return strings.NewReplacer(
		"${clusters}", strconv.Quote(filepath.Join(o.Files, clustersFile)), "${listeners}", strconv.Quote(filepath.Join(o.Files, listenersFile)),
		"${admin}", admin(o.AdminAddress), "${node}", strconv.Quote(o.NodeID), "${cluster}", strconv.Quote(o.Cluster),
		"${metadata}", locality(o.Zone)+metadata(o.Clusters), "${type}", discovery, "${servers}", strings.Join(servers, ""), "${tls}", o.TLS.text(),
	).Replace(text)
}

func locality(zone string) string {
	if zone == "" {
		return ""
	}
	return fmt.Sprintf("\n  locality: {zone: %s}     # read pools prefer its nodes", strconv.Quote(zone))
}

func metadata(clusters []string) string {
	if len(clusters) == 0 {
		return ""
	}
	quoted := make([]string, len(clusters))
	for i, c := range clusters {
		quoted[i] = strconv.Quote(c)
	}
	return fmt.Sprintf("\n  metadata:                # only these database clusters are sent\n    pg: {clusters: [%s]}", strings.Join(quoted, ", "))
}

func admin(a topology.Address) string {
	if a.IsZero() {
		return ""
	}
	return fmt.Sprintf("admin:\n  address: {%s}\n", socket(a))
}

func socket(a topology.Address) string {
	return fmt.Sprintf("socket_address: {address: %s, port_value: %d}", strconv.Quote(a.Host), a.Port)
}

// bootstrap asks for delta, keeps the control connection under watch from this
// side too (a half-open one would freeze Envoy for hours), and gives a starting
// Envoy 30 s for the first answer.
const bootstrap = bootstrapHead + `  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: pgsteer}}]
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 30s}
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 30s}
static_resources:
  clusters:
  - name: pgsteer
    type: ${type}
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options: {connection_keepalive: {interval: 10s, timeout: 5s}}
${tls}    load_assignment:
      cluster_name: pgsteer
      endpoints:
      - lb_endpoints:${servers}
`

// bootstrapFiles watches the files.
const bootstrapFiles = bootstrapHead + `  cds_config: {path_config_source: {path: ${clusters}}, resource_api_version: V3}
  lds_config: {path_config_source: {path: ${listeners}}, resource_api_version: V3}
`

const bootstrapHead = `# Envoy for pgsteer. Start it like this:
#
#   envoy -c envoy.yaml --drain-time-s 0 --drain-strategy immediate
#
# With this drain time the sessions of a lost writer end within milliseconds of
# the decision. With another one they end that many seconds later; Envoy's
# default is 600.
${admin}node:
  id: ${node}
  cluster: ${cluster}${metadata}
dynamic_resources:
`
