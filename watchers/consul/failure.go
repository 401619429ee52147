package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// pacing says how patiently a failure is met.
type pacing uint8

// The zero value pauses for up to 5 s.
const (
	// paceHung: the attempt itself took its deadline, so the pause after it is
	// short; together they stay below 5 s.
	paceHung   pacing = iota + 1
	paceDenied        // up to 30 s, or until the token file changes
	paceConfig        // up to 5 min, or until the token file changes
)

// The longest pauses. Those of the last two are reached by stretching the
// common back-off, whose own limit is 5 s.
const (
	pauseHung      = 2 * time.Second
	stretchDenied  = 6
	stretchConfig  = 60
	textPauseOther = "asking again within 5 s"
)

// trouble is a failed question, before it becomes an observation.
type trouble struct {
	class topology.FailureClass
	pace  pacing
	err   error
}

// next says what happens next, for the failure's text.
func (t *trouble) next() string {
	switch t.pace {
	case paceDenied:
		return "asking again within 30 s, or when the token changes"
	case paceConfig:
		return "this looks like a fault of configuration; asking again within 5 min"
	default:
		return textPauseOther
	}
}

// failure words a trouble for people.
func (t *trouble) failure(what string, c *Client) *topology.Failure {
	return &topology.Failure{
		Class: t.class,
		Text:  fmt.Sprintf("reading %s from %s: %v; %s", what, c.who(), t.err, t.next()),
	}
}

// judgeError sorts the error of a request.
func judgeError(err error, after time.Duration) *trouble {
	t := &trouble{class: topology.FailStore, err: err}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		t.err = u.Err // without the address, which the text has already
	}
	if errors.Is(err, errFiltered) {
		t.class, t.pace = topology.FailDenied, paceDenied
		return t
	}
	if status := (api.StatusError{}); errors.As(err, &status) {
		t.judgeStatus(status)
		return t
	}
	switch class := watchers.TransportClass(err); {
	case class == topology.FailTimeout:
		t.class, t.pace = class, paceHung
		t.err = fmt.Errorf("no answer within %v", after)
	case class != "":
		t.class = class
	case isA[*json.SyntaxError](err), isA[*json.UnmarshalTypeError](err), isA[*tokenError](err):
		t.class = topology.FailContent
	}
	return t
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// judgeStatus sorts an HTTP status. 429 and 503 are a server's wish for fewer
// requests, which the back-off grants.
func (t *trouble) judgeStatus(s api.StatusError) {
	t.err = fmt.Errorf("status %d: %s", s.Code, watchers.Clip(s.Body))
	switch s.Code {
	case http.StatusForbidden, http.StatusUnauthorized:
		t.class, t.pace = topology.FailDenied, paceDenied
	case http.StatusBadRequest:
		t.pace = paceConfig
	}
}

// judgeMeta finds out why an answer must not be believed, though it is no error.
func (c *Client) judgeMeta(m *api.QueryMeta, empty bool) *trouble {
	switch {
	case m.ResultsFilteredByACLs:
		return &trouble{class: topology.FailDenied, pace: paceDenied, err: errFiltered}
	case empty && c.token == nil && m.DefaultACLPolicy == "deny":
		// Consul hides from anonymous callers that it filtered.
		return &trouble{
			class: topology.FailDenied, pace: paceDenied,
			err: errors.New("an empty answer without a token while Consul denies by default; a token file is needed"),
		}
	default:
		return nil
	}
}

// judgeAge finds out whether an answer may be old. Default and consistent reads
// come from the leader, so both headers are perfect unless somebody turned our
// read into a stale one.
func judgeAge(m *api.QueryMeta, most time.Duration) *trouble {
	switch {
	case !m.KnownLeader:
		return &trouble{class: topology.FailStore, err: errors.New("the answer comes from a server that knows no leader")}
	case m.LastContact > most:
		return &trouble{
			class: topology.FailStore,
			err:   fmt.Errorf("the answer comes from a server that has not heard of the leader for %v", m.LastContact),
		}
	default:
		return nil
	}
}
