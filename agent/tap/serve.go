package tap

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxReaders is how many may read at once, of all clusters.
const maxReaders = 4

// patience bounds how long a reader's connection may take nothing.
const patience = time.Minute

// Source is a cluster that can be watched.
type Source struct {
	Tap     *Tap
	Cluster config.Cluster
	Zone    string // the agent's
	// Secrets returns what must never be shown; it is asked before each line.
	// Nil: nothing.
	Secrets func() []string
}

// Options configure a Handler. Find, Clusters and Now are required.
type Options struct {
	Find     func(cluster string) (Source, bool)
	Clusters func() []string // every configured cluster
	Now      topology.Ticker
	Version  string // the agent's
	Buffer   int    // events that a reader may be behind; 0: 4096
}

// Handler serves GET Path+{cluster}: lines of JSON without end, see Line. Four
// may read at once. It extends the server's write deadline for its own connection.
type Handler struct {
	o       Options
	readers atomic.Int32
}

// NewHandler returns a handler without readers.
func NewHandler(o Options) *Handler {
	if o.Buffer == 0 {
		o.Buffer = defaultBuffer
	}
	return &Handler{o: o}
}

// ServeHTTP streams until the reader goes or the agent ends it. The path must
// hold {cluster}.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("cluster")
	source, ok := h.o.Find(name)
	if !ok {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is no cluster %s; known are: %s", name, strings.Join(h.o.Clusters(), " ")))
		return
	}
	defer h.readers.Add(-1)
	if h.readers.Add(1) > maxReaders {
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("%d are recording already, which is as many as may; try again when one has ended", maxReaders))
		return
	}
	s := stream{w: w, control: http.NewResponseController(w), secrets: source.Secrets}
	w.Header().Set("Content-Type", "application/x-ndjson")
	reader, now := source.Tap.read(h.o.Buffer)
	defer source.Tap.leave(reader)
	// An error means that the reader is gone, which nobody needs to be told.
	if s.begin(source.begin(h.o.Version, h.o.Now(), now), now) == nil {
		_ = s.follow(r, reader)
	}
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

// stream is one reader's connection.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	secrets func() []string
	told    *topology.Snapshot // the newest one that was sent
}

// begin sends what is known now.
func (s *stream) begin(b *Begin, now present) error {
	if err := s.line(Line{Kind: KindBegin, Begin: b}); err != nil {
		return err
	}
	for i := range now.observations {
		if err := s.event(event{observation: &now.observations[i]}); err != nil {
			return err
		}
	}
	if now.decided.Snapshot != nil {
		if err := s.event(event{decided: &decision{b.At, now.decided.Snapshot}}); err != nil {
			return err
		}
	}
	return s.control.Flush()
}

// follow sends what comes, and flushes whenever nothing waits.
func (s *stream) follow(r *http.Request, from *reader) error {
	for {
		select {
		case e := <-from.events:
			if err := s.event(e); err != nil {
				return err
			}
			if len(from.events) > 0 {
				continue
			}
			if err := s.control.Flush(); err != nil {
				return err
			}
		case <-from.ended:
			return s.end(from)
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// end sends what came before the end, and why it ended.
func (s *stream) end(from *reader) error {
	for len(from.events) > 0 {
		if err := s.event(<-from.events); err != nil {
			return err
		}
	}
	if from.lost > 0 {
		if err := s.event(event{lost: from.lost}); err != nil {
			return err
		}
	}
	if err := s.line(Line{Kind: KindEnd, End: from.why}); err != nil {
		return err
	}
	return s.control.Flush()
}

func (s *stream) event(e event) error {
	switch {
	case e.observation != nil:
		return s.line(Line{Kind: KindObservation, Observation: (*Observation)(e.observation)})
	case e.decided != nil:
		d := &Decision{At: e.decided.at}
		if e.decided.snapshot != s.told {
			d.Snapshot, s.told = e.decided.snapshot, e.decided.snapshot
		}
		return s.line(Line{Kind: KindDecision, Decision: d})
	default:
		return s.line(Line{Kind: KindLost, Lost: e.lost})
	}
}

func (s *stream) line(l Line) error {
	var secrets []string
	if s.secrets != nil {
		secrets = s.secrets()
	}
	b, err := redacted(l, secrets)
	if err != nil {
		b, err = json.Marshal(Line{Kind: KindLost, Lost: 1}) // what has no JSON form, such as a year beyond 9999
	}
	if err != nil {
		return err
	}
	// What the server allows an answer is too short for this one.
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = s.w.Write(append(b, '\n'))
	return err
}
