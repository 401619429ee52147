package healthapi

import (
	"encoding/json"
	"net/http"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// stored are the paths that answer with a text of Patroni's store as it is; nil: the
// store has none.
var stored = map[string]func(*topology.Documents) json.RawMessage{
	"config":   func(d *topology.Documents) json.RawMessage { return d.Config },
	"failsafe": func(d *topology.Documents) json.RawMessage { return d.Failsafe },
	"history": func(d *topology.Documents) json.RawMessage {
		if d.History == nil {
			return json.RawMessage("[]")
		}
		return d.History
	},
}

// documents is what the authority keeps, the last known while it is away; nil
// before it was read.
func (sub *subject) documents() *topology.Documents {
	if sub.snapshot == nil || sub.snapshot.Authority.Kind != topology.AuthorityPatroni {
		return nil
	}
	return sub.cluster.Documents
}

// paper is what the node's member says of itself there.
func (sub *subject) paper() topology.MemberDocument {
	d := sub.documents()
	if d == nil {
		return topology.MemberDocument{}
	}
	return d.Members[sub.ref.Node]
}

// storedAs answers with one of those texts. As at Patroni one that is not there is
// 502, but for the history, whose absence says that there never was a failover. An
// empty answer while nothing was read would say that too, so that is 503.
func storedAs(name string) func(*Server, *subject) *reply {
	return func(_ *Server, sub *subject) *reply {
		d := sub.documents()
		switch {
		case sub.snapshot != nil && sub.snapshot.Authority.Kind != topology.AuthorityPatroni:
			return refusal(http.StatusNotImplemented, errorBody{Error: "cluster " + sub.ref.Cluster + " has no Patroni, which alone keeps a " + name})
		case d == nil:
			body := errorBody{Error: "Patroni's " + name + " has not been read yet"}
			if m := sub.facts.Member; m != nil {
				body.Ask = apiURL(m.APIURL, name)
			}
			return refusal(http.StatusServiceUnavailable, body)
		}
		text := stored[name](d)
		if text == nil {
			return refusal(http.StatusBadGateway, errorBody{Error: "Patroni's store has no " + name + " that can be read"})
		}
		return newReply(http.StatusOK, topology.Reason{Text: "Patroni's " + name + ", as it was read last"}, text)
	}
}

// refusal is a reply whose reason is its error.
func refusal(status int, body errorBody) *reply {
	return newReply(status, topology.Reason{Text: body.Error}, body)
}
