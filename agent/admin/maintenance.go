package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Change is the body of a POST; without one everything is empty.
type Change struct {
	Reason string `json:"reason,omitempty"`
	Who    string `json:"who,omitempty"` // empty: the token's name
	// For is how long it lasts, such as "30m"; empty: until it is ended.
	For string `json:"for,omitempty"`
	// Drain is how long sessions may go on, such as "5m"; empty: as long as they like.
	// Then balancers end them, unless one of the next two says otherwise.
	Drain string `json:"drain,omitempty"`
	// EndIdle ends sessions at the server while they are between two transactions.
	EndIdle bool `json:"end_idle,omitempty"`
	// Terminate ends the rest there after Drain.
	Terminate bool `json:"terminate,omitempty"`
	// Keep ends nobody: the server is asked who is there, until nobody is or Drain is over.
	Keep bool `json:"keep,omitempty"`
	// Force takes out what would be refused otherwise.
	Force bool `json:"force,omitempty"`
}

// State is the answer to GET for one target.
type State struct {
	Enabled   bool       `json:"enabled"`
	EnteredAt *time.Time `json:"entered_at,omitempty"`
	// Record is for targets within a cluster.
	Record *maintenance.Record `json:"record,omitempty"`
	// Drain is what became of its sessions, also after the maintenance, where this
	// agent drained them.
	Drain *drain.Report `json:"drain,omitempty"`
}

// Answer is the answer to POST and DELETE.
type Answer struct {
	Status    string     `json:"status"`
	EnteredAt *time.Time `json:"entered_at,omitempty"`
	// Still names what keeps the target out after its own record has ended.
	Still []string `json:"still_out_by,omitempty"`
	// Scope is who obeys; "" for the agent itself, whose answers are others' contract.
	Scope string `json:"scope,omitempty"`
}

// ScopeAgent is the scope of what no other agent knows of: those go on serving it. Else it
// is "all agents of" and the key that they share.
const ScopeAgent = "this agent"

// scope is who obeys the records of clusters, pools and nodes.
func (s *Server) scope() string {
	if s.o.Shared != nil {
		if key := s.o.Shared(); key != "" {
			return "all agents of " + key
		}
	}
	return ScopeAgent
}

// scoped is an answer with its scope.
func (s *Server) scoped(t maintenance.Target, a Answer) Answer {
	if t != maintenance.Agent {
		a.Scope = s.scope()
	}
	return a
}

// The words of Answer.Status.
const (
	Entered    = "maintenance_entered"
	Exited     = "maintenance_exited"
	AlreadyIn  = "already in maintenance mode"
	AlreadyOut = "not in maintenance mode"
)

// List is the answer to GET /api/v1/maintenance.
type List struct {
	Records []maintenance.Record `json:"records"` // those in effect, by target
	// Scope is who obeys them; that of the agent itself is always ScopeAgent.
	Scope string `json:"scope"`
	// Drains are those of the records that this agent does, or did.
	Drains []Drained `json:"drains,omitempty"`
	// Trouble is what keeps the store from being used; the records hold anyway.
	Trouble string `json:"trouble,omitempty"`
}

// Drained is how far the drain of a record is, without names.
type Drained struct {
	maintenance.Target
	ID    string      `json:"id"`
	Phase drain.Phase `json:"phase"`
	Left  int         `json:"left"`
	Ended int         `json:"ended"`
}

// Drain returns a drain by its ID; nil: this agent does not do it.
func (l List) Drain(id string) *Drained {
	if i := slices.IndexFunc(l.Drains, func(d Drained) bool { return d.ID == id }); i >= 0 {
		return &l.Drains[i]
	}
	return nil
}

func (s *Server) list(w http.ResponseWriter, _ call) {
	l := List{Records: s.o.Book.Set().Active(s.o.Book.Now()), Scope: s.scope()}
	if l.Records == nil {
		l.Records = []maintenance.Record{}
	}
	for _, r := range l.Records {
		if s.o.Drains == nil || r.Sessions.ID == "" {
			continue
		}
		if rep, ok := s.o.Drains.Report(r.Target); ok && rep.ID == r.Sessions.ID {
			l.Drains = append(l.Drains, Drained{r.Target, rep.ID, rep.Phase, len(rep.Left), len(rep.Ended)})
		}
	}
	if err := s.o.Book.Trouble(); err != nil {
		l.Trouble = err.Error()
	}
	answer(w, http.StatusOK, l)
}

func (s *Server) show(w http.ResponseWriter, c call) {
	t := target(c.Request)
	if why := s.unknown(t); why != "" {
		fail(w, http.StatusNotFound, why)
		return
	}
	r, _ := s.o.Book.Set().Get(t)
	var st State
	if r.Active(s.o.Book.Now()) {
		st = State{Enabled: true, EnteredAt: &r.Since}
		if t != maintenance.Agent {
			st.Record = &r
		}
	}
	if s.o.Drains != nil {
		if rep, ok := s.o.Drains.Report(t); ok {
			st.Drain = &rep
		}
	}
	answer(w, http.StatusOK, st)
}

// enter takes a target out.
func (s *Server) enter(w http.ResponseWriter, c call) {
	t, now := target(c.Request), s.o.Book.Now()
	ch, err := change(c.Request)
	if err != nil {
		s.refuse(w, c, http.StatusBadRequest, err.Error()+"; nothing was changed")
		return
	}
	if why := s.unknown(t); why != "" {
		s.refuse(w, c, http.StatusNotFound, why)
		return
	}
	r, err := ch.record(t, c.caller, now)
	if err != nil {
		s.refuse(w, c, http.StatusBadRequest, err.Error()+"; nothing was changed")
		return
	}
	if ch.atServer() {
		if s.refused(w, c, r, s.attempt(s.o.Book.Set(), r, ch.Force, now)) || !s.prepared(w, c, &r) {
			return
		}
	}
	var done attempt
	err = s.change(c, t, func(set maintenance.Set) (maintenance.Set, bool) {
		done = s.attempt(set, r, ch.Force, now)
		return done.next, done.changed
	})
	if err != nil {
		s.unstored(w, c, t, err)
		return
	}
	if s.refused(w, c, r, done) {
		return
	}
	before, changed := done.before, done.changed
	a := Answer{Status: Entered, EnteredAt: &now}
	if before.Active(now) {
		a = Answer{Status: AlreadyIn, EnteredAt: &before.Since}
	}
	if changed {
		s.audit(c, "start", t, "who", r.Who, "reason", r.Reason, "for", ch.For, "drain", ch.Drain,
			"end_idle", ch.EndIdle, "terminate", ch.Terminate, "keep", ch.Keep, "force", ch.Force)
	}
	answer(w, http.StatusOK, s.scoped(t, a))
}

// attempt is a change that was tried on some records: what they are afterwards, or why
// nothing is changed.
type attempt struct {
	next    maintenance.Set
	before  maintenance.Record // of the target
	changed bool
	code    int    // of the answer that refuses it; 0: it is not refused
	why     string // for the log
	told    string // to the caller
}

// attempt tries a change. It is judged on the very records that it is made on, since two
// changes that do no harm alone may do it together.
func (s *Server) attempt(set maintenance.Set, r maintenance.Record, force bool, now time.Time) attempt {
	next, before, changed := set.Start(r, now)
	if !changed {
		return attempt{next: set, before: before}
	}
	after, _ := next.Get(r.Target)
	if after.Sessions != before.Sessions || !after.Until.Equal(before.Until) {
		if err := after.Fits(); err != nil {
			return attempt{next: set, before: before, code: http.StatusBadRequest, why: err.Error(), told: err.Error() + "; nothing was changed"}
		}
	}
	if r.Target != maintenance.Agent && !force && after.Worsens(before, now) {
		trial := maintenance.Trial{Pools: s.o.Policy(r.Cluster).Pools, Records: set, Now: now}
		if v := s.o.Views.Get(r.Cluster); v.Valid(s.o.Now().Mono) {
			trial.View = v
		}
		if harm := trial.Harm(after); len(harm) > 0 {
			return attempt{next: set, before: before, code: http.StatusConflict, why: strings.Join(harm, "; "), told: trial.Refusal(after, before, harm)}
		}
	}
	return attempt{next: next, before: before, changed: true}
}

// refused answers an attempt that was refused, and writes the line of it.
func (s *Server) refused(w http.ResponseWriter, c call, r maintenance.Record, a attempt) bool {
	if a.code == 0 {
		return false
	}
	s.audit(c, "refused", r.Target, "who", r.Who, "reason", r.Reason, "why", a.why)
	fail(w, a.code, a.told)
	return true
}

// prepared has this agent drain a target once its record says so, and refuses where
// nobody could.
func (s *Server) prepared(w http.ResponseWriter, c call, r *maintenance.Record) bool {
	ctx, cancel := context.WithTimeout(c.Context(), prepareWait)
	defer cancel()
	err := errors.New("this agent drains no server")
	if s.o.Drains != nil {
		r.Sessions, err = s.o.Drains.Prepare(ctx, r.Target, r.Sessions)
	}
	if err == nil {
		return true
	}
	s.audit(c, "refused", r.Target, "who", r.Who, "reason", r.Reason, "why", err.Error())
	fail(w, http.StatusConflict, fmt.Sprintf("%s was not taken out, since its sessions could not be drained: %v. Nothing was changed", r.Target, err))
	return false
}

// leave puts a target back.
func (s *Server) leave(w http.ResponseWriter, c call) {
	t, now := target(c.Request), s.o.Book.Now()
	if err := t.Check(); err != nil { // what is unknown by now may have a record
		s.refuse(w, c, http.StatusNotFound, err.Error())
		return
	}
	changed := false
	err := s.change(c, t, func(set maintenance.Set) (next maintenance.Set, news bool) {
		next, _, changed = set.End(t, cmp.Or(c.caller.name, c.from), now)
		return next, changed
	})
	if err != nil {
		s.unstored(w, c, t, err)
		return
	}
	if s.o.Drains != nil {
		s.o.Drains.Settle(t) // after the answer nobody is ended
	}
	a := Answer{Status: AlreadyOut}
	if changed {
		a.Status = Exited
		s.audit(c, "stop", t)
	}
	for _, r := range s.o.Book.Set().Active(now) {
		if t != maintenance.Agent && r.Target != t && covers(r.Target, t) {
			a.Still = append(a.Still, r.String())
		}
	}
	answer(w, http.StatusOK, s.scoped(t, a))
}

// covers reports whether one target takes all of another out.
func covers(wide, t maintenance.Target) bool {
	return wide == maintenance.Agent ||
		wide.Cluster == t.Cluster && (wide.Pool == "" || wide.Pool == t.Pool) && (wide.Node == "" || wide.Node == t.Node)
}

func (s *Server) change(c call, t maintenance.Target, edit maintenance.Edit) error {
	ctx, cancel := context.WithTimeout(c.Context(), storeWait)
	defer cancel()
	return s.o.Book.Change(ctx, t, edit)
}

func (s *Server) unstored(w http.ResponseWriter, c call, t maintenance.Target, err error) {
	s.audit(c, "failed", t, "err", err)
	fail(w, http.StatusServiceUnavailable, err.Error())
}

// unknown says which of the names of a target nobody has; "" when somebody has all.
func (s *Server) unknown(t maintenance.Target) string {
	if t == maintenance.Agent {
		return ""
	}
	clusters := s.o.Clusters()
	if !slices.Contains(clusters, t.Cluster) {
		return fmt.Sprintf("there is no cluster %q; there are: %s", t.Cluster, strings.Join(clusters, " "))
	}
	pools := s.o.Policy(t.Cluster).Pools
	if t.Pool != "" && !slices.ContainsFunc(pools, func(p topology.Pool) bool { return p.Name == t.Pool }) {
		var names []string
		for _, p := range pools {
			names = append(names, p.Name)
		}
		return fmt.Sprintf("there is no pool %q in cluster %s; there are: %s", t.Pool, t.Cluster, strings.Join(names, " "))
	}
	if t.Node == "" {
		return ""
	}
	var names []string
	if v := s.o.Views.Get(t.Cluster); v != nil && v.Snapshot != nil {
		for _, n := range v.Snapshot.Nodes {
			names = append(names, n.Name)
		}
	}
	if !slices.Contains(names, t.Node) {
		return fmt.Sprintf("there is no node %q in cluster %s; there are: %s", t.Node, t.Cluster, strings.Join(names, " "))
	}
	return ""
}

// change reads the body of a request.
func change(r *http.Request) (Change, error) {
	var c Change
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return c, fmt.Errorf("the body cannot be read: %w", err)
	}
	if len(strings.TrimSpace(string(b))) == 0 {
		return c, nil
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("the body is not what is expected: %w", err)
	}
	if d.More() {
		return c, errors.New("the body holds more than one object")
	}
	return c, nil
}

// atServer reports whether the server is drained, and balancers keep their sessions:
// clients hear the server's own word, or none.
func (ch Change) atServer() bool { return ch.EndIdle || ch.Terminate || ch.Keep }

// record makes a record that begins now.
func (ch Change) record(t maintenance.Target, c caller, now time.Time) (maintenance.Record, error) {
	r := maintenance.Record{Target: t, Reason: ch.Reason, Who: cmp.Or(ch.Who, c.name), Since: now}
	for _, times := range []struct {
		key, text string
		at        *time.Time
	}{{"for", ch.For, &r.Until}, {"drain", ch.Drain, &r.DrainUntil}} {
		if times.text == "" {
			continue
		}
		d, err := time.ParseDuration(times.text)
		if err != nil || d < 0 || d == 0 && times.key == "for" {
			return r, fmt.Errorf("%s: %q is no time, such as 30m or 1h30m", times.key, times.text)
		}
		*times.at = now.Add(d)
	}
	if ch.atServer() {
		switch {
		case r.DrainUntil.IsZero():
			return r, errors.New("end_idle, terminate and keep need drain: how long sessions are waited for")
		case ch.Keep && (ch.EndIdle || ch.Terminate):
			return r, errors.New("keep ends nobody: ask for it, or for end_idle and terminate")
		}
		r.Sessions = maintenance.Sessions{Deadline: r.DrainUntil, EndIdle: ch.EndIdle, Terminate: ch.Terminate}
		r.DrainUntil = time.Time{}
	}
	return r, r.Check()
}
