package postgres

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
)

// names resolves host names and keeps the last answer of each: a name server in
// trouble is no trouble of the node (field report FR-29). That a name does not
// exist is an answer, and is passed on.
type names struct {
	lookup func(ctx context.Context, host string) ([]string, error)

	mu   sync.Mutex // guards everything below
	last map[string][]string
}

// Lookup returns the addresses of a host, by the name server or from memory.
func (n *names) Lookup(ctx context.Context, host string) ([]string, error) {
	addrs, err := n.lookup(ctx, host)
	if _, noAddress := netip.ParseAddr(host); noAddress == nil {
		return addrs, err // nothing of it can be forgotten
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		if n.last == nil {
			n.last = make(map[string][]string)
		}
		n.last[host] = addrs
		return addrs, nil
	}
	known, ok := n.last[host]
	if dns, is := errors.AsType[*net.DNSError](err); !ok || is && dns.IsNotFound {
		return nil, err
	}
	return known, nil
}
