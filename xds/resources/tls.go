package resources

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// ServerTLS makes Envoy speak TLS to the nodes from the first byte, as PostgreSQL 17
// and later take it (its libpq calls that sslnegotiation=direct). Clients then speak
// to Envoy in the clear. The zero value lets bytes pass as they are, PostgreSQL's
// own TLS among them.
type ServerTLS struct {
	// CA has the certificates that a node's must be signed by, in PEM. Empty: no TLS.
	CA string
	// Name is what Envoy asks a node for (SNI), and a name in each node's certificate;
	// a literal address is only looked for there. Empty: any certificate of CA will do.
	Name string
}

// protocol is the ALPN word without which PostgreSQL ends such a session.
const protocol = "postgresql"

// The two kinds of transport socket have these names in every Envoy.
const (
	tlsSocket   = "envoy.transport_sockets.tls"
	clearSocket = "envoy.transport_sockets.raw_buffer"
)

// add makes a cluster's sessions begin with TLS.
func (t ServerTLS) add(c *clusterv3.Cluster) error {
	if t.CA == "" {
		return nil
	}
	trust := &tlsv3.CertificateValidationContext{TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: t.CA}}}
	up := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{protocol},
		// Envoy's own limit as a client is 1.2.
		TlsParams:             &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: trust},
	}}
	if t.Name != "" {
		kind := tlsv3.SubjectAltNameMatcher_IP_ADDRESS
		if _, literal := (topology.Address{Host: t.Name}).IP(); !literal { // SNI has host names alone
			up.Sni, kind = t.Name, tlsv3.SubjectAltNameMatcher_DNS
		}
		trust.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{
			SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: t.Name}},
		}}
	}
	var err error
	c.TransportSocket, err = transportSocket(tlsSocket, up)
	return err
}

func transportSocket(name string, m proto.Message) (*corev3.TransportSocket, error) {
	packed := new(anypb.Any)
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}, err
}
