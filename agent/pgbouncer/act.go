package pgbouncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Order is what an operator wants of databases of one PgBouncer.
type Order struct {
	Action Action `json:"-"`
	// Databases are those that are meant; empty: all that are configured.
	Databases []string `json:"databases,omitempty"`
	// For ends a pause by itself; empty: 10 s. It is 5 min at most.
	For string `json:"for,omitempty"`
}

// Action is what is done to a database.
type Action string

// The actions. Pause ends by itself; Kill ends all sessions and lets clients come anew.
const (
	Pause     Action = "pause"
	Resume    Action = "resume"
	Disable   Action = "disable"
	Enable    Action = "enable"
	Kill      Action = "kill"
	Reconnect Action = "reconnect"
	Reload    Action = "reload" // of PgBouncer as a whole
	// Forget is for what was left paused at a PgBouncer that is configured no more, once
	// it was resumed there.
	Forget Action = "forget"
)

// How long an operator's pause lasts, and may last.
const (
	pauseFor  = 10 * time.Second
	pauseMost = 5 * time.Minute
)

// Act carries an order out, and returns the databases that it was for. After an error
// some of it may be done; what was paused is resumed all the same.
func (c *Control) Act(ctx context.Context, name string, o Order) ([]string, error) {
	b := c.bouncers[name]
	switch {
	case b == nil && o.Action == Forget:
		return c.forget(name, o.Databases)
	case b == nil:
		return nil, fmt.Errorf("there is no PgBouncer %s", name)
	}
	var known []string
	for _, e := range b.Databases {
		known = append(known, e.Name)
	}
	names := o.Databases
	if len(names) == 0 {
		names = known
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("PgBouncer %s has no database %q; there are: %s", name, n, strings.Join(known, " "))
		}
	}
	defer b.nudge()
	switch o.Action {
	case Pause:
		return names, b.pauseFor(ctx, names, o.For)
	case Resume:
		b.endEarly(names, byOrder)
		return names, b.resume(ctx, names)
	case Kill:
		return names, b.kill(ctx, names)
	case Reconnect:
		return names, b.reconnect(ctx, names)
	case Reload:
		return known, b.readAgain(ctx)
	case Forget:
		return nil, fmt.Errorf("PgBouncer %s is configured, so that what pgsteer has paused there is resumed; there is nothing to forget", name)
	case Disable, Enable:
		commands := make([]string, len(names))
		for i, n := range names {
			commands[i] = strings.ToUpper(string(o.Action)) + " " + quoted(n)
		}
		return names, b.do(ctx, func(ctx context.Context, c *console) error { return c.send(ctx, commands...) })
	}
	return nil, fmt.Errorf("there is no action %q; there are: %s", o.Action, strings.Join(actions(), " "))
}

func actions() (all []string) {
	for _, a := range []Action{Pause, Resume, Disable, Enable, Kill, Reconnect, Reload, Forget} {
		all = append(all, string(a))
	}
	return all
}

// pauseFor pauses databases for a time, after which they are resumed like all that
// nothing holds.
func (b *bouncer) pauseFor(ctx context.Context, names []string, text string) error {
	limit := pauseFor
	if text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > pauseMost {
			return fmt.Errorf("%q is no time such as 10s, of at most %s; nothing was paused", text, pauseMost)
		}
		limit = d
	}
	if err := b.c.enter(); err != nil {
		return err
	}
	defer b.c.holds.Done()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited for %s", limit))
	defer cancel()
	stop := context.AfterFunc(b.c.running, cancel)
	defer stop()
	there, _, err := b.present(ctx)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return there[n].Paused })
	held, err := b.hold("", names, there)
	if err != nil {
		return err
	}
	free := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for n, h := range held {
			if b.held[n] == h { // and not what came later
				delete(b.held, n)
			}
		}
		b.nudge()
	}
	end := time.AfterFunc(limit, free)
	for _, n := range names {
		if err := b.pauseOne(ctx, n); err != nil {
			end.Stop()
			free()
			return b.notPaused(ctx, names, err)
		}
	}
	b.count("pauses", len(names))
	return nil
}

// notPaused takes a pause back that did not come about.
func (b *bouncer) notPaused(ctx context.Context, names []string, err error) error {
	if later := b.resume(context.WithoutCancel(ctx), names); later != nil {
		return errors.Join(err, later)
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w; nothing is paused", err)
	}
	return fmt.Errorf("%w; nothing is paused. Give it longer (--for), end that transaction (pg_stat_activity at the node shows it), or end all sessions with `pgsteer pgbouncer kill %s %s`",
		err, b.Name, strings.Join(names, " "))
}

// readAgain has PgBouncer read its files, and looks what it has then.
func (b *bouncer) readAgain(ctx context.Context) error {
	if err := b.do(ctx, func(ctx context.Context, c *console) error { return c.send(ctx, "RELOAD") }); err != nil {
		return err
	}
	_, wrong, err := b.present(ctx)
	if err == nil && wrong != nil {
		err = fmt.Errorf("after RELOAD %w", wrong)
	}
	return err
}

// kill ends every session of databases, of clients and at servers, and lets clients
// come anew: KILL pauses, so RESUME is in the same packet, but where somebody else
// had paused.
func (b *bouncer) kill(ctx context.Context, names []string) error {
	there, _, err := b.present(ctx)
	if err != nil {
		return err
	}
	var commands, ours []string
	for _, n := range names {
		commands = append(commands, "KILL "+quoted(n))
		if !there[n].Paused {
			ours = append(ours, n)
			commands = append(commands, "RESUME "+quoted(n))
		}
	}
	if err := b.c.begin().pause(b.Bouncer, ours, b.c.o.Now().Wall); err != nil {
		return err
	}
	err = b.do(ctx, func(ctx context.Context, c *console) error { return c.send(ctx, commands...) })
	return errors.Join(err, b.resume(ctx, ours))
}

// Done is the answer to an order that was carried out.
type Done struct {
	Databases []string `json:"databases"`
	// Note says what it has ended besides, for people; "" for nothing.
	Note   string `json:"note,omitempty"`
	Status string `json:"status"`
}

// maxBody is far above what an order needs.
const maxBody = 64 << 10

// Serve carries out an order of somebody who may: POST with the names of the PgBouncer
// and of the action in the path, and an Order. who is for the audit: the keys of a line of the
// log that say who asks and from where.
func (c *Control) Serve(w http.ResponseWriter, r *http.Request, who ...any) {
	// The server's limits are for short answers, and a pause takes until the last
	// transaction has ended. A writer without deadlines needs none lifted.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	o := Order{Action: Action(r.PathValue("action"))}
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err == nil && len(strings.TrimSpace(string(b))) > 0 {
		d := json.NewDecoder(strings.NewReader(string(b)))
		d.DisallowUnknownFields()
		err = d.Decode(&o)
	}
	code := http.StatusBadRequest
	var names []string
	var answer any
	var note string
	if err == nil {
		code, note = http.StatusConflict, c.heldNote(r.PathValue("bouncer"), o)
		names, err = c.Act(r.Context(), r.PathValue("bouncer"), o)
	}
	target := r.PathValue("bouncer") + "/" + string(o.Action)
	log := c.o.Logger.With(append([]any{"target", target, "pgbouncer", r.PathValue("bouncer"), "databases", names, "for", o.For}, who...)...)
	if err != nil {
		log.Warn("order to PgBouncer", "audit", string(o.Action)+" failed", "err", err)
		answer = map[string]string{"error": err.Error()}
	} else {
		log.Info("order to PgBouncer", "audit", string(o.Action), "note", note)
		code, answer = http.StatusOK, Done{Databases: names, Note: note, Status: string(o.Action) + " done"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}
