package switchover

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ContentType is that of the answer: an Event a line, the last with the result.
const ContentType = "application/x-ndjson"

// lineWithin bounds the writing of one line; a caller that takes none is gone.
const lineWithin = 5 * time.Second

// maxBody is far above what a request needs.
const maxBody = 4 << 10

// Serve answers a request of somebody who may: with 409 and the reason, or with a line
// for each event. A caller who goes away aborts. who is for the audit: the keys of a line
// of the log that say who asks and from where.
func (r *Runner) Serve(w http.ResponseWriter, req *http.Request, who ...any) {
	q, err := request(req)
	q.Cluster = req.PathValue("cluster")
	log := r.o.Logger.With(append([]any{"target", q.Cluster, "cluster", q.Cluster, "to", q.To, "force", q.Force}, who...)...)
	refuse := func(code int, err error) {
		log.Warn("switchover", "audit", "refused", "why", err.Error())
		fail(w, code, err)
	}
	if err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	p, err := r.Plan(q)
	if err != nil {
		refuse(http.StatusConflict, err)
		return
	}
	// The server's limits are for short answers. Reading has none from here on, so that
	// nothing but the caller's leave ends the request's context.
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		p.Drop()
		refuse(http.StatusInternalServerError, err)
		return
	}
	p.log = log
	log.Info("switchover", "audit", "start", "writer", p.from, "authority", p.authority.Name, "limit", p.limit)
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	_ = control.Flush() // so that the caller knows, while PAUSE takes its time, that it has begun
	var mu sync.Mutex
	lines := json.NewEncoder(w)
	tell := func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Result == nil {
			log.Info("switchover", "step", e.Text)
		}
		// Whoever is gone ends the request's context, which aborts.
		_ = control.SetWriteDeadline(time.Now().Add(lineWithin))
		_ = lines.Encode(e)
		_ = control.Flush()
	}
	res := p.Run(req.Context(), tell)
	outcome := []any{"audit", "end", "was", res.From, "writer", res.Writer, "held_seconds", res.HeldFor, "new_writer_seconds", res.WriterFor}
	if res.Error == "" {
		log.Info("switchover", outcome...)
	} else {
		log.Warn("switchover", append(outcome, "err", res.Error)...)
	}
	tell(Event{At: r.o.Now().Wall, Text: res.Error, Result: &res})
}

// request reads the body; without one everything is left to the authority.
func request(req *http.Request) (q Request, err error) {
	b, err := io.ReadAll(http.MaxBytesReader(nil, req.Body, maxBody))
	if err != nil {
		return q, errors.New("the body cannot be read; nothing was done")
	}
	if len(strings.TrimSpace(string(b))) == 0 {
		return q, nil
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return q, errors.New("the body is not what is expected (to, limit, force): " + err.Error() + "; nothing was done")
	}
	return q, nil
}

func fail(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
