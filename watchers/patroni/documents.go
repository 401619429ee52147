package patroni

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// factsPrefix makes keys of the documents, which are the values of the keys and so
// are read as in Consul.
const factsPrefix = "rest/"

// learnFacts reads the dynamic configuration, the history and the failsafe members
// from one member. What cannot be read is unknown once the last is too old; as
// documents, which nothing depends on, the last ones stay.
func (p *poll) learnFacts(ctx context.Context, from *endpoint) {
	now := p.w.o.Now().Mono
	var keys api.KVPairs
	answers := 0
	names := []string{"config", "history", "failsafe"}
	for _, name := range names {
		r, t := p.w.client.get(ctx, question{url: from.base + "/" + name, limit: p.w.o.Timeout})
		p.w.count(func(s *Stats) { s.Requests++ })
		if t != nil || !missing(name, r.status) && r.status != http.StatusOK {
			break
		}
		answers++
		// Before 4.0.7 an empty configuration says that there is no such key.
		if r.status == http.StatusOK && strings.TrimSpace(string(r.body)) != "{}" {
			keys = append(keys, &api.KVPair{Key: factsPrefix + name, Value: r.body})
		}
	}
	if answers == len(names) {
		d := consul.Documents(factsPrefix, keys)
		p.pic.documents = &d
	}
	if !slices.ContainsFunc(keys, func(k *api.KVPair) bool { return k.Key == factsPrefix+"config" }) {
		return
	}
	var faults []string
	p.pic.facts, _, faults = consul.Picture(factsPrefix, keys)
	p.pic.factsAt = now
	p.warnedFacts = p.warn(p.warnedFacts, faults)
}

// missing tells the status for a key that is not there. Before 3.0 there is no
// failsafe mode, and its path is one of those that Patroni does not know.
func missing(name string, status int) bool {
	return status == http.StatusBadGateway || name == "failsafe" && status == http.StatusServiceUnavailable
}

// published are the documents with what the newest list says; nil before the first.
func (p *picture) published() *topology.Documents {
	if p.documents == nil {
		return nil
	}
	d := *p.documents
	d.Members, d.Switchover = p.papers, p.switchover
	return &d
}

// paper reads of a list's entry what Member has no place for. Positions are texts
// there; the state is that of replication where it is known.
func paper(fields map[string]json.RawMessage) topology.MemberDocument {
	d := consul.MemberDocument(fields)
	d.ReceiveLSN, _ = topology.ParseLSN(text(fields["receive_lsn"])) // the word unknown is 0
	d.ReplayLSN, _ = topology.ParseLSN(text(fields["replay_lsn"]))
	if state := text(fields["state"]); state == "streaming" || state == "in archive recovery" {
		d.Replication = state
	}
	return d
}

func switchover(raw json.RawMessage) *topology.Switchover {
	var f struct{ At, From, To string }
	if json.Unmarshal(raw, &f) != nil || f.At == "" {
		return nil
	}
	return &topology.Switchover{At: f.At, From: f.From, To: f.To}
}
