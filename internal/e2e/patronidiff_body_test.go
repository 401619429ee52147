package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// bodies are the endpoints whose bodies are compared, with the fields in which no
// two answers need be alike: times of asking, and who answers.
var bodies = map[string]*regexp.Regexp{
	"/patroni":  regexp.MustCompile(`^(dcs_last_seen|xlog\.replayed_timestamp)$`),
	"/cluster":  regexp.MustCompile(`^$`),
	"/history":  regexp.MustCompile(`^$`),
	"/config":   regexp.MustCompile(`^$`),
	"/failsafe": regexp.MustCompile(`^$`),
	"/metrics":  regexp.MustCompile(`^(patroni_version|patroni_dcs_last_seen|patroni_xlog_replayed_timestamp)$`),
}

// absent stands for a field that is not there.
const absent = "absent"

// fields compares two bodies field by field. If one server sent no body, that is
// a matter of the status alone.
func (d *diffRig) fields(x result, theirs, ours reply) (found []result) {
	if theirs.status != 200 || ours.status != 200 {
		return nil
	}
	a, b := flatten(x.target, theirs), flatten(x.target, ours)
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, f := range slices.Sorted(maps.Keys(all)) {
		if bodies[x.target].MatchString(f) {
			continue
		}
		y := x
		y.topic, y.key, y.node, y.row = x.target+" "+f, f, x.row, d.rowOf(x, f)
		y.patroni, y.ours = orAbsent(a, f), orAbsent(b, f)
		if near(f, y.patroni, y.ours) {
			y.ours = y.patroni
		}
		found = append(found, d.listed(y))
	}
	return found
}

// rowOf is the row of the node that a field is about, which in /cluster need not
// be the one that was asked.
func (d *diffRig) rowOf(x result, field string) string {
	member, ok := strings.CutPrefix(field, "members[")
	if !ok {
		return x.row
	}
	member, _, _ = strings.Cut(member, "]")
	cluster, _, _ := strings.Cut(x.ref, "/")
	if d.node(cluster+"/"+member) == nil {
		return "M24"
	}
	return strings.TrimSuffix(cmp.Or(d.want[cluster+"/"+member], x.row), "~")
}

func orAbsent(m map[string]string, key string) string {
	if v, ok := m[key]; ok {
		return v
	}
	return absent
}

// near reports whether two positions differ by no more than what a server writes
// by itself between two questions.
func near(field, a, b string) bool {
	if !strings.Contains(field, "location") && !strings.Contains(field, "lag") && !strings.Contains(field, "lsn") {
		return false
	}
	const limit = 1 << 20
	x, errX := position(a)
	y, errY := position(b)
	return errX == nil && errY == nil && max(x, y)-min(x, y) < limit
}

// position reads a number or "0/3000060".
func position(s string) (int64, error) {
	s = strings.Trim(s, `"`)
	if high, low, ok := strings.Cut(s, "/"); ok {
		return strconv.ParseInt(high+fmt.Sprintf("%08s", low), 16, 64)
	}
	f, err := strconv.ParseFloat(s, 64)
	return int64(f), err
}

// flatten makes "xlog.location" → "50331744" of a body. Members of a cluster go by
// their names.
func flatten(path string, r reply) map[string]string {
	out := make(map[string]string)
	if path == "/metrics" {
		for line := range strings.Lines(string(r.body)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "{"); ok && !strings.HasPrefix(line, "#") {
				out[strings.TrimSpace(name)] = value[strings.LastIndex(value, " ")+1:]
			}
		}
		return out
	}
	var v any
	if json.Unmarshal(r.body, &v) != nil {
		return map[string]string{"": "no JSON"}
	}
	put(out, "", v)
	return out
}

// nameOf is the name of an element: of a member, or of a walsender.
func nameOf(m map[string]any, otherwise string) string {
	for _, key := range []string{"name", "application_name"} {
		if name, ok := m[key].(string); ok {
			return name
		}
	}
	return otherwise
}

func put(out map[string]string, at string, v any) {
	prefix := at
	if at != "" {
		prefix += "."
	}
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			put(out, prefix+k, e)
		}
	case []any:
		for i, e := range v {
			key := strconv.Itoa(i)
			if m, ok := e.(map[string]any); ok {
				if m["state"] == "startup" {
					continue // for milliseconds: a Patroni that asks its own server for the timeline
				}
				key = nameOf(m, key)
			}
			put(out, at+"["+key+"]", e)
		}
	default:
		b, _ := json.Marshal(v) // what was decoded can be encoded
		out[at] = string(b)
	}
}
