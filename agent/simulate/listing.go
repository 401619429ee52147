package simulate

import "github.com/pgsteer/pgsteer/agent/topology"

// lists reports whether nodes are written down anywhere.
func (r *run) lists() bool { return len(r.s.cluster.Nodes) > 0 || r.s.cluster.Inventory != "" }

func (r *run) fileSource() topology.SourceID {
	name := "config"
	if len(r.s.cluster.Nodes) == 0 {
		name = r.s.cluster.Inventory
	}
	return topology.SourceID{Kind: topology.SourceFile, Name: name}
}

// list is what the source of nodes says. A list without any node changes
// nothing and is a failure, as in package watchers/file.
func (r *run) list() topology.Observation {
	o := topology.Observation{Source: r.fileSource()}
	if len(r.world.listed) == 0 {
		o.Failure = &topology.Failure{
			Class: topology.FailContent,
			Text:  o.Source.Name + " lists no node; the nodes known so far stay, and the file is read again",
		}
		return o
	}
	o.Nodes = &topology.NodeList{Nodes: r.world.listed}
	return o
}
