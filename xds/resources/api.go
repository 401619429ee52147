package resources

import (
	"errors"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// API is what a client in gRPC asks for, each part by name. All have the name of
// [APIName]. Nothing of what an operator may choose for Envoy's sessions is in it,
// neither checks nor TLS: gRPC refuses a whole cluster for what it does not know.
type API struct {
	Listener  *listenerv3.Listener
	Cluster   *clusterv3.Cluster
	Endpoints Assignment
}

// apiSuffix follows a pool's name in that of its API. No cluster or pool has an @
// in its name.
const apiSuffix = "@grpc"

// APIName is the name by which a pool is asked for in gRPC:
// xds:///main/primary@grpc.
func APIName(cluster, pool string) string { return Name(cluster, pool) + apiSuffix }

// IsAPI reports whether a name is that of a part of an [API].
func IsAPI(name string) bool { return strings.HasSuffix(name, apiSuffix) }

// newAPI makes the API of a pool, by what the pool offers.
func newAPI(cluster string, p topology.PoolVerdicts, o offer, s Settings) (API, error) {
	name := APIName(cluster, p.Pool)
	s.ServerTLS = ServerTLS{}
	c, err := newCluster(name, p.Mode, s)
	if err != nil {
		return API{}, err
	}
	c.EdsClusterConfig.ServiceName = name
	l, err := newAPIListener(name)
	if err != nil {
		return API{}, err
	}
	e, _ := newAssignment(c, o)
	return API{l, c, e}, errors.Join(l.ValidateAll(), c.ValidateAll(), e.validate())
}

// newAPIListener makes the listener that a client in gRPC asks for by name. It
// listens nowhere and sends everything to the cluster of the same name. Nothing in
// it depends on a verdict.
//
// The route stands in it, so that a client needs no fourth type; gRPC wants the
// router filter last, and one route that matches every path.
func newAPIListener(name string) (*listenerv3.Listener, error) {
	router, err := pack(new(routerv3.Router))
	if err != nil {
		return nil, err
	}
	manager, err := pack(&hcmv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name,
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    name,
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name},
					}},
				}},
			}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router},
		}},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:        name,
		ApiListener: &listenerv3.ApiListener{ApiListener: manager},
	}, nil
}
