package patroni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// pathWord is the health check whose status says whether a member holds the
// leader key, in a standby cluster too: by a write to the store that succeeded
// less than a ttl ago, which no old read can imitate. Its body is that of
// /patroni, whose own status says nothing.
const pathWord = "/leader"

// word is what a member says of itself.
type word struct {
	name  string // Patroni gives it since 3.2
	holds bool   // status 200
	// blind: it has no list in which the key has a holder, because it has just
	// taken the key, or because it cannot read the store. A paused member answers
	// 200 then although another may hold the key.
	blind bool

	location topology.LSN // of a primary, asked of PostgreSQL for this answer; 0: not answered
	timeline topology.Timeline
	systemID uint64
}

// parseWord reads the answer of pathWord. What cannot be told apart from another
// program's answer, or comes from another cluster, is trouble.
func parseWord(r reply, scope string) (word, *trouble) {
	if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
		return word{}, &trouble{class: topology.FailDenied, err: fmt.Errorf("status %d: %s", r.status, watchers.Clip(string(r.body)))}
	}
	if r.status != http.StatusOK && r.status != http.StatusServiceUnavailable {
		return word{}, contentTrouble(fmt.Errorf("status %d, where Patroni says 200 or 503: %s", r.status, watchers.Clip(string(r.body))))
	}
	var body struct {
		Role, State, SystemID, Timeline, Unlocked, Location json.RawMessage
		Patroni                                             struct{ Scope, Name string }
	}
	if err := unmarshal(r.body, map[string]any{
		"role": &body.Role, "database_system_identifier": &body.SystemID, "timeline": &body.Timeline,
		"cluster_unlocked": &body.Unlocked, "xlog": &body.Location, "patroni": &body.Patroni,
	}); err != nil {
		return word{}, contentTrouble(err)
	}
	if t := foreign(body.Patroni.Scope, scope); t != nil {
		return word{}, t
	}
	w := word{
		name: consul.LegalName(body.Patroni.Name), holds: r.status == http.StatusOK,
		// It is only ever true or absent; whatever else it may become is no proof.
		blind:    body.Unlocked != nil && string(body.Unlocked) != "false",
		timeline: topology.Timeline(number(body.Timeline, 32)), systemID: number(body.SystemID, 64),
	}
	var xlog struct{ Location json.RawMessage }
	if json.Unmarshal(body.Location, &xlog) == nil {
		w.location = topology.LSN(number(xlog.Location, 64))
	}
	return w, nil
}

// foreign refuses what another cluster's Patroni says, as after an address was
// given to another host.
func foreign(got, want string) *trouble {
	switch got {
	case want:
		return nil
	case "":
		return contentTrouble(errors.New("the answer names no scope, so it is not Patroni's"))
	}
	return contentTrouble(fmt.Errorf("it is of scope %s and not of %s", watchers.Clip(got), want))
}

// unmarshal reads the fields of a JSON object. A field of the wrong form is the
// caller's to judge where it is raw, and makes the whole answer unusable where
// it is not.
func unmarshal(body []byte, fields map[string]any) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil || all == nil {
		return fmt.Errorf("the answer is no whole JSON object: %s", watchers.Clip(string(body)))
	}
	for key, into := range fields {
		raw, ok := all[key]
		if !ok || string(raw) == "null" {
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("%s cannot be read: %s", key, watchers.Clip(string(raw)))
		}
	}
	return nil
}

// number reads a whole number, also in quotes; anything else is 0, which is
// unknown.
func number(raw json.RawMessage, bits int) uint64 {
	n, err := strconv.ParseUint(strings.Trim(string(raw), `" `), 10, bits)
	if err != nil {
		return 0
	}
	return n
}
