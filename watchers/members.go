package watchers

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// MemberAddress is where a member's PostgreSQL listens, by an authority's word.
// One spelling for one server: addresses are compared as values.
func MemberAddress(host string, port uint16) (topology.Address, error) {
	if host == "" {
		return topology.Address{}, errors.New("it names no host")
	}
	a := topology.Address{Host: strings.Trim(host, "[]"), Port: port}
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		a.Host = ip.Unmap().String()
	}
	if err := a.Check(); err != nil {
		return topology.Address{}, err
	}
	return a, nil
}

// Distinct leaves out members whose names differ from another's by case only:
// Consul, DNS and PostgreSQL cannot tell them apart (field report FR-37). Of two,
// the leader stays, else the one that was there before, else the first by name.
// The texts name those that are left out.
func Distinct(members, before []topology.Member, leader string) (stay []topology.Member, out []string) {
	rank := func(m topology.Member) int {
		switch {
		case m.Name == leader:
			return 0
		case slices.ContainsFunc(before, func(b topology.Member) bool { return b.Name == m.Name }):
			return 1
		}
		return 2
	}
	best := make(map[string]topology.Member, len(members))
	for _, m := range members {
		folded := strings.ToLower(m.Name)
		other, taken := best[folded]
		if !taken || cmp.Or(cmp.Compare(rank(m), rank(other)), cmp.Compare(m.Name, other.Name)) < 0 {
			best[folded] = m
		}
	}
	for _, m := range members {
		if kept := best[strings.ToLower(m.Name)].Name; kept != m.Name {
			out = append(out, fmt.Sprintf("member %s: its name differs from that of %s by case only; it is left out", m.Name, kept))
			continue
		}
		stay = append(stay, m)
	}
	return stay, out
}
