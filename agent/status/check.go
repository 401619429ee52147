package status

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Check is whether one node may take sessions in one pool, for `pgsteer check`.
type Check struct {
	Cluster string `json:"cluster"`
	Pool    string `json:"pool"`
	// Of the verdict, what Patroni's paths and agent checks say too; undecided also
	// while the view is too old to be believed.
	topology.NodeVerdict
}

// String is one line: who, what, and why.
func (c Check) String() string {
	line := c.Cluster + "/" + c.Pool + "/" + c.Node + " is " + c.Verdict.String()
	if c.Verdict == topology.Up {
		line += fmt.Sprintf(" with weight %d%%", c.Weight)
	}
	r := c.Reason()
	line += ": " + string(r.Code)
	if r.Text != "" {
		line += ", " + r.Text
	}
	return strings.Join(strings.Fields(line), " ") // one line, whatever a reason holds
}

// check answers for a cluster, a pool and a node.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	cluster, pool := r.PathValue("cluster"), r.PathValue("pool")
	if !slices.Contains(s.o.Clusters(), cluster) {
		noCheck(w, http.StatusNotFound, fmt.Sprintf("there is no cluster %s; known are: %s", cluster, strings.Join(s.o.Clusters(), " ")))
		return
	}
	s.checkIn(w, cluster, pool, r.PathValue("node"))
}

// checkBackend answers for HAProxy's names: a backend and a server in it.
func (s *Server) checkBackend(w http.ResponseWriter, r *http.Request) {
	backend := r.PathValue("backend")
	var found [][2]string
	for _, name := range slices.Sorted(slices.Values(s.o.Clusters())) {
		for _, p := range s.o.Policy(name).Pools {
			if topology.Backend(name, p.Name) == backend {
				found = append(found, [2]string{name, p.Name})
			}
		}
	}
	switch len(found) {
	case 0:
		noCheck(w, http.StatusNotFound, fmt.Sprintf("there is no pool whose backend is %s; the backend of pool primary of cluster main is %s", backend, topology.Backend("main", "primary")))
	case 1:
		s.checkIn(w, found[0][0], found[0][1], r.PathValue("server"))
	default:
		noCheck(w, http.StatusConflict, fmt.Sprintf("backend %s may be pool %s of cluster %s or pool %s of cluster %s; ask for CLUSTER/POOL/NODE",
			backend, found[0][1], found[0][0], found[1][1], found[1][0]))
	}
}

func (s *Server) checkIn(w http.ResponseWriter, cluster, pool, node string) {
	c := Check{Cluster: cluster, Pool: pool, NodeVerdict: topology.NodeVerdict{
		Node: node, Reasons: []topology.Reason{{Code: topology.CodeNoEvidence, Text: "nothing is decided yet"}},
	}}
	v := s.o.Views.Get(cluster)
	if !v.Valid(s.o.Now().Mono) {
		if v != nil {
			c.Reasons[0].Text = "the last decision is too old to be believed"
		}
		answer(w, http.StatusOK, c)
		return
	}
	if p, ok := v.Snapshot.Pool(pool); ok {
		if n, ok := p.Verdict(node); ok {
			c.NodeVerdict = n
			answer(w, http.StatusOK, c)
			return
		}
	}
	if !v.Snapshot.Complete {
		answer(w, http.StatusOK, c)
		return
	}
	noCheck(w, http.StatusNotFound, fmt.Sprintf("cluster %s has no node %s in a pool %s; pgsteer status lists its nodes and pools", cluster, node, pool))
}

// noCheck refuses names that mean nobody, or several.
func noCheck(w http.ResponseWriter, code int, text string) {
	answer(w, code, map[string]string{"error": text})
}
