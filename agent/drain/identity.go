package drain

import (
	"fmt"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Identity is which server a node was when its drain was asked for. Nobody is ended
// at another one.
type Identity struct {
	Address  topology.Address `json:"address"`
	SystemID uint64           `json:"system_id,string"`
	Standby  bool             `json:"standby"`
	// Run is one run of the server, see runQuery: replicas of a cluster are alike in
	// all of the above, and an address may come to lead to another one. Empty in the
	// file of a release that did not write it.
	Run string `json:"run"`
}

// Judged is a node as it was judged last.
type Judged struct {
	topology.Node
	Cluster    string
	SystemID   uint64 // of its cluster; zero: unknown
	InRecovery topology.Tri
	Timeline   topology.Timeline // zero: unknown
	// Open: some pool sends it new sessions.
	Open bool
}

// identity is that of a node as it is judged now.
func (j Judged) identity() (Identity, error) {
	switch {
	case j.SystemID == 0:
		return Identity{}, fmt.Errorf("the system identifier of %s's cluster is unknown", j.Name)
	case j.InRecovery == topology.Unknown:
		return Identity{}, fmt.Errorf("it is unknown whether %s is the primary", j.Name)
	}
	return Identity{Address: j.Address, SystemID: j.SystemID, Standby: j.InRecovery == topology.Yes}, nil
}

// differs says how the node, as it is judged now, is not what it was; nil: it is.
func (id Identity) differs(j Judged) error {
	now, err := j.identity()
	switch {
	case err != nil:
		return err
	case now.Address != id.Address:
		return fmt.Errorf("%s is at %s now and was at %s when it was taken out", j.Name, now.Address, id.Address)
	case now.SystemID != id.SystemID:
		return fmt.Errorf("%s belongs to system identifier %d now and belonged to %d when it was taken out", j.Name, now.SystemID, id.SystemID)
	case now.Standby != id.Standby:
		return fmt.Errorf("%s is %s now and was %s when it was taken out", j.Name, role(now.Standby), role(id.Standby))
	}
	return nil
}

// other says how the server that answers is not the node as it is judged; nil: it
// is. What is unknown of it is not the same.
func (id Identity) other(j Judged, p topology.Probe) error {
	switch {
	case p.SystemID != id.SystemID:
		return fmt.Errorf("the server at %s says system identifier %d, %s has %d", id.Address, p.SystemID, j.Name, id.SystemID)
	case p.InRecovery != topology.Bool(id.Standby):
		return fmt.Errorf("the server at %s is not %s, as %s was when it was taken out", id.Address, role(id.Standby), j.Name)
	case p.Timeline == 0 || p.Timeline != j.Timeline:
		return fmt.Errorf("the server at %s is on timeline %d, %s was judged on %d", id.Address, p.Timeline, j.Name, j.Timeline)
	}
	return nil
}

// otherRun says how the run of the server that answers is not the one of before; nil:
// it is. A restart is another run too: those who were there before it are gone, and
// nothing tells the same server from another one for sure.
func (id Identity) otherRun(now string) error {
	switch {
	case id.Run == "":
		return fmt.Errorf("it is not known which server was at %s when it was taken out; to go on, start the drain again", id.Address)
	case id.Run != now:
		return fmt.Errorf("the server at %s is another one than when it was taken out, or was restarted since; to go on there, start the drain again", id.Address)
	}
	return nil
}

func role(standby bool) string {
	if standby {
		return "a replica"
	}
	return "the primary"
}
