package resources

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// accessFormat is one line a session, written when it is connected and again
// when it ends: who came, where it went, why it ended.
const accessFormat = `[%START_TIME%] pool=%UPSTREAM_CLUSTER% chain=%FILTER_CHAIN_NAME% client=%DOWNSTREAM_REMOTE_ADDRESS% ` +
	`node=%UPSTREAM_HOST% flags=%RESPONSE_FLAGS% in=%BYTES_RECEIVED% out=%BYTES_SENT% ms=%DURATION%` + "\n"

// Envoy tries a session this often before it gives up; each try picks a node
// again, so the second may reach the successor of a node that just left.
const (
	connectAttempts = 3
	connectPause    = 50 * time.Millisecond
	connectPauseMax = 250 * time.Millisecond
)

// newListener makes the listener of a pool. The chain's name is all that may
// differ between two decisions.
func newListener(name string, addr topology.Address, o offer) (*listenerv3.Listener, error) {
	filter, err := newProxy(name)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:       name,
		StatPrefix: name,
		Address:    socketAddress(addr),
		FilterChains: []*listenerv3.FilterChain{{
			Name:    o.chain,
			Filters: []*listenerv3.Filter{filter},
		}},
		// Only a change of this listener may drain it, never a failed health check
		// or a drain of the whole Envoy that an operator asked for elsewhere.
		DrainType:        listenerv3.Listener_MODIFY_ONLY,
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		TcpKeepalive:     keepalive(),
	}, nil
}

func newProxy(name string) (*listenerv3.Filter, error) {
	log, err := newAccessLog()
	if err != nil {
		return nil, err
	}
	config, err := pack(&tcpproxyv3.TcpProxy{
		StatPrefix:       name,
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: name},
		// Pooled sessions idle for hours; Envoy's default of one hour would cut
		// them. Dead peers are found by keepalive on both sides; by Envoys before 1.37
		// on that of the nodes alone.
		IdleTimeout:        durationpb.New(0),
		MaxConnectAttempts: wrapperspb.UInt32(connectAttempts),
		BackoffOptions: &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(connectPause),
			MaxInterval:  durationpb.New(connectPauseMax),
		},
		UpstreamConnectMode: tcpproxyv3.UpstreamConnectMode_IMMEDIATE,
		AccessLog:           []*accesslogv3.AccessLog{log},
		AccessLogOptions:    &tcpproxyv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnConnected: true},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Filter{
		Name:       "envoy.filters.network.tcp_proxy",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config},
	}, nil
}

func newAccessLog() (*accesslogv3.AccessLog, error) {
	config, err := pack(&streamv3.StdoutAccessLog{
		AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: accessFormat},
			}},
		}},
	})
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLog{
		Name:       "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: config},
	}, nil
}

// pack wraps a message so that the same content always gives the same bytes.
func pack(m proto.Message) (*anypb.Any, error) {
	packed := new(anypb.Any)
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return packed, err
}
