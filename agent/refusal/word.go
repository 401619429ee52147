package refusal

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// SQLSTATEs of a refusal (PostgreSQL 17 manual, appendix A, class 57).
const (
	adminShutdown    = "57P01" // libpq stops at it
	cannotConnectNow = "57P03" // libpq 14 and later goes on to its next host
)

// word is what a client of the pool is told now. It names no address and no lag:
// whoever reads it has not logged in.
func (s *Server) word() *pgproto3.ErrorResponse {
	where := fmt.Sprintf("pool %s of cluster %s", s.o.Pool, s.o.Cluster)
	later := func(format string) *pgproto3.ErrorResponse {
		return fatal(cannotConnectNow, fmt.Sprintf(format, where), "")
	}
	view := s.o.Views.Get(s.o.Cluster)
	if !view.Valid(s.o.Now().Mono) {
		return later("nothing is decided yet for %s")
	}
	p, known := view.Snapshot.Pool(s.o.Pool)
	if !known {
		return later("nothing is decided yet for %s")
	}
	if len(p.Up()) > 0 {
		return later("%s has a node again: connect once more")
	}
	if why, out := outForMaintenance(p); out {
		return fatal(adminShutdown, where+" is out for maintenance: "+why, "Connect again when it is over.")
	}
	if p.Undecided() {
		return later("nothing is decided yet for %s")
	}
	return later("no node of %s takes sessions right now")
}

// outForMaintenance reports whether a pool without a node would have one but for
// an operator's word, and the reason given for it. A node that is out for another
// cause as well would not serve without that word either.
func outForMaintenance(p topology.PoolVerdicts) (why string, out bool) {
	for _, n := range p.Nodes {
		if len(n.Reasons) == 1 && n.Reasons[0].Code == topology.CodeMaintenance {
			return n.Reasons[0].Text, true
		}
	}
	return "", false
}

func fatal(code, message, hint string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message, Hint: hint}
}
