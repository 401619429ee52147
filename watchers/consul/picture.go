package consul

import (
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Picture reads the keys below prefix ("service/main/") as a Watcher does: what
// the authority says, the nodes that it lists, and a text for every key that
// cannot be used as it is. It is pure; whether an absence is true is for the
// caller to find out.
func Picture(prefix string, pairs api.KVPairs) (topology.Authority, []topology.Node, []string) {
	s := parseScope(prefix, pairs)
	var faults []string
	for _, f := range s.faults {
		faults = append(faults, f.key+": "+f.err)
	}
	return s.authority, s.nodes, faults
}

// Documents reads of the same keys what no rule needs.
func Documents(prefix string, pairs api.KVPairs) topology.Documents {
	return parseScope(prefix, pairs).documents
}
