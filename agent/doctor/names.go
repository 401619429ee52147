package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// named is a DNS name that the configuration, or the running agent's sources, give
// for a server.
type named struct {
	subject, host string

	found []netip.Addr
	err   error
}

func names(ctx context.Context, x *exam) []Result {
	if x.Lookup == nil {
		return nil
	}
	all := x.names(ctx)
	each(len(all), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		all[i].found, all[i].err = x.Lookup(ctx, all[i].host)
	})
	var rows []Result
	for _, n := range all {
		rows = append(rows, n.judge())
	}
	return rows
}

// names are those of all nodes and monitors.
func (x *exam) names(ctx context.Context) (all []named) {
	add := func(subject, host string) {
		if _, err := netip.ParseAddr(host); err != nil && host != "" {
			all = append(all, named{subject: subject, host: host})
		}
	}
	for _, cl := range x.Config.Clusters {
		for _, n := range x.nodes(ctx, cl) {
			host := n.Address.Host
			if n.HostName != "" {
				host = n.HostName // the agent has resolved it
			}
			add(cl.Name+"/"+n.Name, host)
		}
		if cl.Authority == topology.AuthorityMonitor {
			for _, at := range cl.Monitor.Monitors {
				add("cluster "+cl.Name+", monitor", at.Host)
			}
		}
	}
	return all
}

func (n named) judge() Result {
	r := Result{Subject: n.subject + " " + n.host, Level: OK, Tried: "resolve " + n.host + " by this host's resolver"}
	dns, _ := errors.AsType[*net.DNSError](n.err)
	switch {
	case dns != nil && dns.IsNotFound, n.err == nil && len(n.found) == 0:
		r.Level, r.Found, r.Do = Fail, "there is no such name", "correct the name, or add it to DNS or /etc/hosts; balancers get the address that pgsteer finds"
	case n.err != nil:
		r.Level, r.Found, r.Do = Warn, n.err.Error(), "see that the resolver answers (/etc/resolv.conf); a running agent keeps the last address, one that starts waits half a minute"
	default:
		var texts []string
		for _, ip := range n.found {
			texts = append(texts, ip.Unmap().String())
		}
		slices.Sort(texts)
		r.Found = strings.Join(slices.Compact(texts), " ")
		if len(n.found) > 1 {
			r.Found = fmt.Sprintf("%s; one of them is used", r.Found)
		}
	}
	return r
}
