package doctor

import (
	"context"
	"net/netip"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
)

// refusals looks at the addresses to which balancers send a session that no node takes.
func refusals(ctx context.Context, x *exam) []Result {
	a := x.ask(ctx)
	if a != nil && a.Silent != nil {
		return nil // they are probably its own
	}
	var all []Result
	for _, cl := range x.Config.Clusters {
		for _, p := range cl.Pools {
			if p.Refuse.Off() {
				continue
			}
			l := listener{"pool " + cl.Name + "/" + p.Name, p.Refuse}
			r := bindable(ctx, l, a != nil && a.listens(p.Refuse))
			if r.Level == OK {
				r = x.reachable(r, cl, p.Refuse)
			}
			all = append(all, r)
		}
	}
	return all
}

// listens reports whether the agent has bound exactly this address.
func (a *Agent) listens(at config.ListenAddress) bool {
	want, err := netip.ParseAddrPort(string(at))
	for _, l := range a.Listeners {
		if is, err2 := netip.ParseAddrPort(l); err == nil && err2 == nil && is == want {
			return true
		}
	}
	return false
}

// reachable goes on with an address that is free or the agent's own: whether those
// that are told of it can come there.
func (x *exam) reachable(r Result, cl config.Cluster, at config.ListenAddress) Result {
	r.Tried += ", and see who is told of it"
	haproxy := false
	for _, t := range x.Config.Templates {
		haproxy = haproxy || t.PgBouncer == "" && t.Covers(cl.Name)
	}
	xds := x.Config.Listen.XDS
	var who []string
	if haproxy {
		who = append(who, "templates")
	}
	if !xds.Off() {
		who = append(who, "Envoys")
	}
	switch {
	case len(who) == 0:
		r.Level = Warn
		r.Found = "no balancer is told of it: no template renders cluster " + cl.Name + ", and listen.xds is off"
		r.Do = "a template for HAProxy, or listen.xds; a balancer that is set up by hand must send sessions there by a rule of its own"
	case !xds.Off() && loopback(at) && !loopback(xds):
		r.Level = Warn
		r.Found = "listen.xds " + string(xds) + " may serve Envoys of other hosts, and for those this address is their own host: their clients see a closed connection"
		r.Do = "an address of this host that they can reach; or listen.xds on loopback, if every Envoy is on this host"
	case loopback(at):
		r.Found += "; " + strings.Join(who, " and ") + " are told of it; balancers of this host alone reach it"
	default:
		r.Found += "; " + strings.Join(who, " and ") + " are told of it; balancers of other hosts need a way to it"
	}
	return r
}

func loopback(at config.ListenAddress) bool {
	host, _ := at.HostPort()
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
