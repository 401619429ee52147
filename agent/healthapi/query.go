package healthapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// query holds the parameters of a check.
type query struct {
	bytes *topology.Size // lag=16MB, nil without
	time  *time.Duration // lag=10s or lag_time=10s, nil without
	write bool           // mode=write: what was received counts, not what was replayed
	state *string        // replication_state=, nil without
	tags  []tag          // tag_KEY=VALUE
}

type tag struct{ key, value string }

// timeUnits are PostgreSQL's. A bare m is missing on purpose: who writes 10m may
// well mean megabytes.
var timeUnits = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

// parseQuery reads the parameters that an endpoint takes, in the way of Patroni
// (Python's parse_qs): the first of several counts, a blank one is none, unknown
// ones are ignored. With Strict a limit that cannot be read is an error: Patroni
// drops it in silence, and "1mb" would let every replica through.
func parseQuery(raw string, e endpoint, compat Compat) (query, error) {
	var q query
	var bytes, span, mode string
	for pair := range strings.SplitSeq(raw, "&") {
		key, value, _ := strings.Cut(pair, "=")
		key, _ = unescape(key)
		value, err := unescape(value)
		switch {
		case value == "":
		case e.lag && (key == "lag" || key == "lag_time"):
			if err != nil && compat == Strict {
				return q, fmt.Errorf("%s: %w", key, err)
			}
			into := &bytes
			if key == "lag_time" {
				into = &span
			}
			*into = cmp.Or(*into, value)
		case e.mode && key == "mode":
			mode = cmp.Or(mode, value)
		case e.state && compat != Patroni3 && key == "replication_state" && q.state == nil:
			q.state = &value
		case e.tags && strings.HasPrefix(key, "tag_"):
			q.addTag(tag{strings.TrimPrefix(key, "tag_"), value})
		}
	}
	q.write = mode == "write"
	err := q.setLimits(bytes, span)
	if compat != Strict {
		err = nil
	}
	return q, err
}

// unescape decodes a name or value. One with a bad escape stays as it is.
func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, "%+") {
		return s, nil
	}
	u, err := url.QueryUnescape(s)
	if err != nil {
		return s, err
	}
	return u, nil
}

func (q *query) addTag(t tag) {
	for _, o := range q.tags {
		if o.key == t.key {
			return
		}
	}
	q.tags = append(q.tags, t)
}

// setLimits reads lag=, a size or a time, and lag_time=, a time.
func (q *query) setLimits(bytes, span string) error {
	if span != "" {
		d, err := parseSpan(span)
		if err != nil {
			return fmt.Errorf("lag_time: %w", err)
		}
		q.time = &d
	}
	if bytes == "" {
		return nil
	}
	size, errSize := topology.ParseSize(bytes)
	if errSize == nil {
		q.bytes = &size
		return nil
	}
	d, err := parseSpan(bytes)
	if err != nil {
		return fmt.Errorf("lag: %w, and no time either: %w", errSize, err)
	}
	if q.time == nil || d < *q.time {
		q.time = &d
	}
	return nil
}

// parseSpan reads a time as PostgreSQL writes it: a number and ms, s, min, h or d.
func parseSpan(s string) (time.Duration, error) {
	t := strings.TrimSpace(s)
	number := strings.TrimRight(t, "abcdefghijklmnopqrstuvwxyz")
	unit, ok := timeUnits[t[len(number):]]
	if !ok {
		return 0, fmt.Errorf("time %q needs a unit of ms, s, min, h, d", s)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || n < 0 || n*float64(unit) > float64(1<<62) {
		return 0, errors.New("time " + strconv.Quote(s) + " is no number that makes sense")
	}
	return time.Duration(n * float64(unit)), nil
}

// matches reports why the node's tags do not match the query's. Tags compare as
// texts: the boolean true is "true", the number 10 is "10".
func (q query) matches(n topology.Node) (answer, bool) {
	for _, t := range q.tags {
		switch v, ok := n.Tags[t.key]; {
		case !ok:
			return no(topology.CodeNotSelected, fmt.Sprintf("the node has no tag %s", t.key)), false
		case v != t.value:
			return no(topology.CodeNotSelected, fmt.Sprintf("tag %s is %s and not %s", t.key, v, t.value)), false
		}
	}
	return answer{}, true
}
