package maintenance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/pgsteer/pgsteer/agent/statefile"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// version is the format of a document.
const version = 1

// remember is how long the end of a record is kept. An agent that was away for
// longer, and still has the record in its own file, must be told anew.
const remember = 90 * 24 * time.Hour

// room is how large a document may become before the oldest ends in it are forgotten
// early, in bytes. A value in Consul has at most 512 KiB; a change that does not fit
// would fail, and nothing could be put back.
const room = 400 << 10

// settled is how long after its end a record may still hold for somebody: an agent that
// has not heard of it yet, or whose clock is slow.
const settled = 10 * time.Minute

// maxEnder bounds, in bytes of JSON, who is remembered as having ended a record.
const maxEnder = 64

// Set is at most one record a target. It is a value: changes give another one.
type Set struct {
	records []kept // by target
	foreign map[string]json.RawMessage
}

// document is a set in JSON.
type document struct {
	Version int    `json:"version"`
	Records []kept `json:"records"`
}

// Decode reads a document. No text at all is the empty set; anything else that is
// not understood as a whole is refused as a whole.
func Decode(b []byte) (Set, error) {
	if len(b) == 0 {
		return Set{}, nil
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		return Set{}, fmt.Errorf("maintenance records: %w", err)
	}
	if d.Version != version {
		return Set{}, fmt.Errorf("maintenance records of version %d, this release knows %d", d.Version, version)
	}
	s := Set{}
	for _, r := range d.Records {
		if err := r.Check(); err != nil {
			return Set{}, fmt.Errorf("maintenance record of %s: %w", r.Target, err)
		}
		s.place(r)
	}
	var err error
	s.foreign, err = statefile.Foreign(b, new(document))
	return s, err
}

// Encode writes a document.
func (s Set) Encode() ([]byte, error) {
	return statefile.Encode(document{version, append([]kept{}, s.records...)}, s.foreign)
}

// Compact writes a document without what is there for people's eyes alone, for stores
// that bound a value.
func (s Set) Compact() ([]byte, error) {
	b, err := s.Encode()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Compact(&out, b)
	return out.Bytes(), err
}

func compare(a, b Target) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool))
}

func (s Set) find(t Target) (int, bool) {
	return slices.BinarySearchFunc(s.records, t, func(k kept, t Target) int { return compare(k.Target, t) })
}

// put adds a record, in place of an older one of the same target.
func (s Set) put(k kept) Set {
	s.records = slices.Clone(s.records)
	s.place(k)
	return s
}

// place is put for a set whose records nobody else has.
func (s *Set) place(k kept) {
	i, there := s.find(k.Target)
	switch {
	case !there:
		s.records = slices.Insert(s.records, i, k)
	case k.Revision >= s.records[i].Revision:
		s.records[i] = k
	}
}

// merge takes over what another set knows better. Of records with the same
// revision the other set's counts.
func (s Set) merge(other Set) Set {
	s.records = slices.Clone(s.records)
	for _, k := range other.records {
		s.place(k)
	}
	if other.foreign != nil {
		s.foreign = other.foreign
	}
	return s
}

// only keeps the records that a test is true for.
func (s Set) only(keep func(Record) bool) Set {
	s.records = slices.DeleteFunc(slices.Clone(s.records), func(k kept) bool { return !keep(k.Record) })
	return s
}

// forget drops records that came to their end long ago.
func (s Set) forget(now time.Time) Set {
	return s.only(func(r Record) bool {
		end := r.over(now)
		return end.IsZero() || now.Sub(end) < remember
	})
}

// tidy forgets what nobody needs any more, so that a document has room for what comes:
// of records that are over all but what other agents must hear, and the oldest of them
// altogether where there are very many.
func (s Set) tidy(now time.Time) Set {
	s = s.forget(now)
	for i, k := range s.records {
		s.records[i].Record = k.spent(now)
	}
	return s.prune(now)
}

// prune drops the oldest ends while the set is too large; those first that every agent
// knows by the time in the record itself.
func (s Set) prune(now time.Time) Set {
	excess := s.size(now) - room
	if excess <= 0 {
		return s
	}
	old := slices.Clone(s.records)
	old = slices.DeleteFunc(old, func(k kept) bool {
		end := k.over(now)
		return end.IsZero() || now.Sub(end) < settled
	})
	slices.SortStableFunc(old, func(a, b kept) int {
		if self := a.EndedAt.IsZero(); self != b.EndedAt.IsZero() {
			if self {
				return -1
			}
			return 1
		}
		return a.over(now).Compare(b.over(now))
	})
	drop := make(map[Target]bool)
	for _, k := range old {
		if excess <= 0 {
			break
		}
		drop[k.Target] = true
		excess -= k.size(now)
	}
	return s.only(func(r Record) bool { return !drop[r.Target] })
}

// size is how large the set is as a document, or may become by the ends of its records,
// in bytes: an end must always fit.
func (s Set) size(now time.Time) int {
	frame, err := Set{foreign: s.foreign}.Compact()
	if err != nil {
		return 0 // whoever writes it hears of that
	}
	total := len(frame)
	for _, k := range s.records {
		total += k.size(now)
	}
	return total
}

// Get returns the record of a target, be it over.
func (s Set) Get(t Target) (Record, bool) {
	if i, ok := s.find(t); ok {
		return s.records[i].Record, true
	}
	return Record{}, false
}

// Active returns the records that hold at a moment, by target.
func (s Set) Active(now time.Time) []Record {
	var out []Record
	for _, k := range s.records {
		if k.Active(now) {
			out = append(out, k.Record)
		}
	}
	return out
}

// In reports whether the agent itself is out at a moment.
func (s Set) In(now time.Time) (Record, bool) {
	r, ok := s.Get(Agent)
	return r, ok && r.Active(now)
}

// Of is what the rules of a cluster are told: its records and the agent's own,
// those that say most first. The rules end each at its time.
func (s Set) Of(cluster string) topology.Maintenance {
	var m topology.Maintenance
	for _, k := range slices.Backward(s.records) {
		if k.EndedAt.IsZero() && (k.Cluster == cluster || k.Target == Agent) {
			m.Records = append(m.Records, topology.MaintenanceRecord{
				Agent: k.Target == Agent, Pool: k.Pool, Node: k.Node, Reason: k.Reason, Who: k.Who, Since: k.Since, Until: k.Until, DrainUntil: k.DrainUntil,
			})
		}
	}
	return m
}

// Start takes a target out. Of one that is out already the new words and times
// count, if there are any; it stays out since when it was.
func (s Set) Start(r Record, now time.Time) (next Set, before Record, changed bool) {
	i, there := s.find(r.Target)
	k := kept{Record: r}
	k.Since = now
	if there {
		before, k.foreign = s.records[i].Record, s.records[i].foreign
	}
	if before.Active(now) {
		silent := r.DrainUntil.IsZero() && r.Sessions == Sessions{} // about what happens to sessions
		if r.Reason == "" && r.Until.IsZero() && silent {
			return s, before, false
		}
		k.Since, k.Reason, k.Who = before.Since, cmp.Or(r.Reason, before.Reason), cmp.Or(r.Who, before.Who)
		if r.Until.IsZero() {
			k.Until = before.Until
		}
		if silent {
			k.DrainUntil, k.Sessions = before.DrainUntil, before.Sessions
		}
	}
	k.Revision = revision(before.Revision, now)
	return s.put(k).tidy(now), before, true
}

// End ends the record of a target; changed is false when it is not out. It needs no more
// room than the record had.
func (s Set) End(t Target, who string, now time.Time) (next Set, before Record, changed bool) {
	i, there := s.find(t)
	if !there || !s.records[i].Active(now) {
		return s, Record{}, false
	}
	k := s.records[i]
	before = k.Record
	if text, err := json.Marshal(who); err != nil || len(text) > maxEnder || strings.ContainsFunc(who, unicode.IsControl) {
		who = "" // the log has it
	}
	k.EndedAt, k.EndedBy, k.Revision = now, who, revision(k.Revision, now)
	return s.put(k).tidy(now), before, true
}
