package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// limit is how many bytes of the agent's stream a session takes at most: what
// simulate can still read, and about half an hour of three nodes that are asked
// every second.
const limit = 6 << 20

// restless is how long an agent that runs never goes without a decision: it
// decides at least once a second.
const restless = 1200 * time.Millisecond

// Session is what was seen of one cluster.
type Session struct {
	Recording simulate.Recording
	// Lost counts observations and decisions that came too fast to be written down.
	Lost uint64
	// Ended says why the session ended before the reader wanted it to; empty when
	// the reader did.
	Ended string

	version, user, database string
	begun, decided, masked  bool
	last                    topology.Clock // of the last round
	lately                  uint64         // lost since the last round
	open                    []topology.Observation
	seen                    int // observations in rounds
}

// Read follows an agent's stream until ctx ends, which is no error, or until the
// stream does, which Session.Ended then explains. It calls began as soon as there
// is something that can be replayed; nil: nothing. An error means that there never was.
func Read(ctx context.Context, stream io.Reader, began func()) (*Session, error) {
	s := &Session{}
	lines := json.NewDecoder(stream)
	var err error
	for s.Ended == "" && err == nil {
		var l tap.Line
		before := s.decided
		if err = lines.Decode(&l); err == nil {
			s.take(l)
		}
		if began != nil && s.decided && !before {
			began()
		}
		if l.Kind == tap.KindDecision && lines.InputOffset() > limit && s.Ended == "" {
			s.Ended = fmt.Sprintf("it holds %d observations, and pgsteer simulate reads no file that is much larger", s.seen)
		}
	}
	switch {
	case s.Ended != "" || ctx.Err() != nil:
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		s.Ended = "the agent went away"
	default:
		s.Ended = "the connection to the agent failed: " + err.Error()
	}
	if !s.decided {
		return nil, fmt.Errorf("nothing was recorded: %s", cmp.Or(s.Ended, "it was ended before the first decision"))
	}
	s.finish()
	return s, nil
}

func (s *Session) take(l tap.Line) {
	switch {
	case l.Kind == tap.KindBegin && l.Begin != nil:
		s.begin(*l.Begin)
	case !s.begun:
	case l.Kind == tap.KindObservation && l.Observation != nil:
		o := topology.Observation(*l.Observation)
		o.At, o.AskedAt = s.straight(o.At), s.straight(o.AskedAt)
		s.open = append(s.open, o)
	case l.Kind == tap.KindDecision && l.Decision != nil:
		s.round(*l.Decision)
	case l.Kind == tap.KindLost:
		s.lately += l.Lost
	case l.Kind == tap.KindEnd:
		s.Ended = l.End
	}
}

func (s *Session) begin(b tap.Begin) {
	s.begun, s.last = true, b.At
	s.version, s.user, s.database = b.Version, b.User, b.Database
	c := b.Cluster.Config()
	if c.Authority == topology.AuthorityNone && len(c.Nodes) == 0 && c.Inventory == "" && b.Saved != nil {
		c.Nodes = b.Saved.Nodes // they come from a source that a scenario has no word for
	}
	s.Recording = simulate.Recording{Cluster: c, Zone: b.Zone, Start: b.At, Saved: b.Saved}
}

// jitter is by how much two clocks that go alike differ when they are read one
// after the other.
const jitter = time.Millisecond

// straight lets the wall clock go like the monotonic one unless it was set: no
// rule needs its last digits, and each would be a line of the scenario.
func (s *Session) straight(c topology.Clock) topology.Clock {
	like := s.Recording.Start.Wall.Add(c.Mono.Sub(s.Recording.Start.Mono))
	if d := c.Wall.Sub(like); d.Abs() < jitter {
		c.Wall = like
	}
	return c
}

// round closes a round. One in which nothing was seen and decided is left out.
func (s *Session) round(d tap.Decision) {
	r := simulate.Round{
		At: d.At, Observations: s.open, Decision: d.Snapshot,
		Still: s.lately == 0 && d.At.Mono.Sub(s.last.Mono) > restless,
	}
	if r.Still {
		s.Recording.Rounds = append(s.Recording.Rounds, simulate.Round{At: s.last})
	}
	if len(r.Observations) > 0 || r.Decision != nil || r.Still {
		s.Recording.Rounds = append(s.Recording.Rounds, r)
	}
	s.seen += len(s.open)
	s.Lost += s.lately
	s.decided = true
	s.last, s.open, s.lately = d.At, nil, 0
}

// finish adds the moment of the last decision, up to which the scenario lasts.
// What was seen after it is left out, since nobody knows what came of it.
func (s *Session) finish() {
	s.Lost += s.lately
	s.Recording.Rounds = append(s.Recording.Rounds, simulate.Round{At: s.last})
}

// Lasted is the time from the beginning to the last decision.
func (s *Session) Lasted() time.Duration { return s.last.Mono.Sub(s.Recording.Start.Mono) }

// Observations is how many are in the scenario, those of before the beginning included.
func (s *Session) Observations() int { return s.seen }

// Encode writes the scenario.
func (s *Session) Encode(w io.Writer) error {
	r := s.Recording
	r.About = s.about()
	return simulate.EncodeScenario(w, r)
}

func (s *Session) about() string {
	text := fmt.Sprintf("Recorded from an agent of version %s, %s from %s on: %d observations.\n", s.version,
		s.Lasted().Round(time.Millisecond), s.Recording.Start.Wall.UTC().Format(time.RFC3339), s.seen) +
		"Maintenance, and what the agent knew at the beginning beyond its newest observations, are not in it.\n"
	if s.masked {
		text += "Names, addresses and identifiers are masked.\n"
	}
	if s.Lost > 0 {
		text += fmt.Sprintf("%d messages of the agent are missing, which came too fast; a replay may come to other decisions.\n", s.Lost)
	}
	if s.Ended != "" {
		text += "It ended early: " + s.Ended + ".\n"
	}
	return text
}

// Check plays a scenario that Encode wrote and returns how many of its
// expectations, the agent's last decisions, do not hold. An error means that it
// cannot be played at all.
func Check(text []byte) (failed int, err error) {
	s, err := simulate.Parse("the recording", text)
	if err != nil {
		return 0, err
	}
	r, err := s.Run()
	if err != nil {
		return 0, err
	}
	return len(r.Failures), nil
}
