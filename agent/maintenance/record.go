// Package maintenance holds who is out: records of what an operator took out, why,
// by whom, since and until when, in a local file or in a store that all agents
// share.
//
// Guarantees: a change is durable before it is in effect, or it is refused and
// nothing changed. A record ends at its time by itself or by an explicit end, and
// by nothing else: a store that is away, empty or unreadable ends none. Of two
// words on one target the newer counts on every agent. Records and keys of a newer
// release are kept as they are. However many records there were, an end fits into the
// store; of what is over only what other agents must hear is kept.
package maintenance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/pgsteer/pgsteer/agent/statefile"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Target is what is taken out. Without a cluster it is this agent: all that it
// steers, on this agent alone.
type Target struct {
	Cluster string `json:"cluster,omitempty"`
	Pool    string `json:"pool,omitempty"` // empty: every pool
	Node    string `json:"node,omitempty"` // empty: every node
}

// Agent is the target of the agent itself.
var Agent Target

// String is cluster/node for people, with the pool in words.
func (t Target) String() string {
	if t == Agent {
		return "this agent"
	}
	text := t.Cluster
	if t.Node != "" {
		text += "/" + t.Node
	}
	if t.Pool != "" {
		text += " in pool " + t.Pool
	}
	return text
}

// Check refuses names that cannot be.
func (t Target) Check() error {
	if t.Cluster == "" && t != Agent {
		return errors.New("a node or pool without its cluster")
	}
	for _, name := range []string{t.Cluster, t.Pool, t.Node} {
		if name == "" {
			continue
		}
		if err := topology.CheckName(name); err != nil {
			return err
		}
	}
	return nil
}

// maxText bounds what an operator writes, in bytes.
const maxText = 500

// Record is one target that is out, or was.
type Record struct {
	Target
	Reason string    `json:"reason,omitempty"`
	Who    string    `json:"who,omitempty"`
	Since  time.Time `json:"since"`
	// Until is when it ends by itself; zero: it must be ended.
	Until time.Time `json:"until,omitzero"`
	// DrainUntil is when balancers end the sessions that are still there; zero: they
	// keep them.
	DrainUntil time.Time `json:"drain_until,omitzero"`
	// Sessions is what happens to sessions at the node's server; zero: nothing.
	// Balancers then keep theirs, so that clients hear the server's own word.
	Sessions Sessions `json:"sessions,omitzero"`
	// EndedAt is when somebody ended it; zero: nobody did.
	EndedAt time.Time `json:"ended_at,omitzero"`
	EndedBy string    `json:"ended_by,omitempty"`
	// Revision grows with each change of the target's record, see newer.
	Revision int64 `json:"revision"`
}

// Sessions is a drain at a node's server: wait for sessions to go, end those that are to
// be ended, report who is left. One agent does it, and has what became of it.
type Sessions struct {
	// ID is the drain's; the agent that has it in its own file does it.
	ID string `json:"id"`
	// By is the host of that agent, for people.
	By string `json:"by,omitempty"`
	// Deadline is when the waiting is over.
	Deadline time.Time `json:"deadline"`
	// EndIdle: sessions between two transactions end while others are waited for.
	EndIdle bool `json:"end_idle,omitempty"`
	// Terminate: at the deadline the rest ends.
	Terminate bool `json:"terminate,omitempty"`
}

// Ends reports whether anybody is ended; else the drain only waits, looks and reports.
func (s Sessions) Ends() bool { return s.EndIdle || s.Terminate }

// Check refuses what no release would have written.
func (s Sessions) Check() error {
	switch {
	case s == Sessions{}:
		return nil
	case len(s.ID) > maxText || len(s.By) > maxText || strings.ContainsFunc(s.ID+s.By, unicode.IsControl):
		return errors.New("a drain whose name cannot be")
	case s.Deadline.IsZero():
		return errors.New("a drain without its deadline")
	}
	return nil
}

// Active reports whether the target is out at a moment.
func (r Record) Active(now time.Time) bool {
	return !r.Since.IsZero() && r.EndedAt.IsZero() && (r.Until.IsZero() || now.Before(r.Until))
}

// over is when a record came to its end; zero: it has none yet.
func (r Record) over(now time.Time) time.Time {
	switch {
	case !r.EndedAt.IsZero():
		return r.EndedAt
	case !r.Until.IsZero() && !now.Before(r.Until):
		return r.Until
	}
	return time.Time{}
}

// spent is what is kept of a record that is over: that it is, and by which drain others
// may still know it. One that is not over, or only just by its own time, is kept whole.
func (r Record) spent(now time.Time) Record {
	end := r.over(now)
	if end.IsZero() || r.EndedAt.IsZero() && now.Sub(end) < settled {
		return r
	}
	out := Record{Target: r.Target, Since: r.Since, Until: r.Until, Revision: r.Revision}
	if !r.EndedAt.IsZero() {
		out.Since, out.Until = seconds(r.Since), time.Time{}
		out.EndedAt, out.EndedBy = seconds(r.EndedAt), r.EndedBy
	}
	if r.Sessions != (Sessions{}) {
		out.Sessions = Sessions{ID: r.Sessions.ID, Deadline: r.Sessions.Deadline}
	}
	return out
}

func seconds(at time.Time) time.Time { return at.UTC().Truncate(time.Second) }

// Fits refuses times that do not go together. It is for changes: a record that stands is
// never refused for it.
func (r Record) Fits() error {
	if at := r.Sessions.Deadline; !at.IsZero() && !r.Until.IsZero() && !r.Until.After(at) {
		return errors.New("drain must be shorter than for: with the maintenance its drain ends too")
	}
	return nil
}

// Check refuses what no release would have written. Names and texts end up in
// commands to balancers and in logs, whoever wrote the record.
func (r Record) Check() error {
	if err := r.Target.Check(); err != nil {
		return err
	}
	for _, text := range []string{r.Reason, r.Who, r.EndedBy} {
		if len(text) > maxText {
			return fmt.Errorf("a text of %d bytes, at most %d are allowed", len(text), maxText)
		}
		if strings.ContainsFunc(text, unicode.IsControl) {
			return errors.New("a text holds line breaks or other control characters")
		}
	}
	switch {
	case r.Since.IsZero():
		return errors.New("a record without its beginning")
	case !r.Until.IsZero() && !r.Until.After(r.Since):
		return errors.New("a record that ends before it begins")
	}
	return r.Sessions.Check()
}

// revision is the number of the next change after one: larger than it, and by the
// clock, so that a change counts also after a store was lost with its numbers.
func revision(before int64, now time.Time) int64 { return max(before+1, now.UnixMilli()) }

// kept is a record with the keys of it that this release does not know.
type kept struct {
	Record
	foreign map[string]json.RawMessage
}

// size is how large it is in a document, or may become by its end, in bytes.
func (k kept) size(now time.Time) int {
	n := k.length()
	if k.Active(now) {
		k.EndedAt, k.EndedBy = now, strings.Repeat("x", maxEnder-len(`""`))
		k.Record = k.spent(now)
		n = max(n, k.length())
	}
	return n
}

func (k kept) length() int {
	b, err := json.Marshal(k)
	if err != nil {
		return 0 // whoever writes it hears of that
	}
	return len(b) + len(",")
}

// UnmarshalJSON reads a record and keeps what it does not know of it.
func (k *kept) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&k.Record) == nil {
		return nil // as nearly always, and there may be thousands
	}
	k.Record = Record{}
	if err := json.Unmarshal(b, &k.Record); err != nil {
		return err
	}
	var err error
	k.foreign, err = statefile.Foreign(b, new(Record))
	return err
}

// MarshalJSON writes both.
func (k kept) MarshalJSON() ([]byte, error) {
	if len(k.foreign) == 0 {
		return json.Marshal(k.Record)
	}
	return statefile.Encode(k.Record, k.foreign)
}
