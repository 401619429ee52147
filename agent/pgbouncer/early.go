package pgbouncer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// holding is a database that is paused until it is let go.
type holding struct {
	cluster  string // whose switchover it is for, "" for an operator's pause
	led      string // where it led, as host:port: when it was paused, or for an operator's pause at the last reload
	complete bool   // the switchover's PAUSE is through, so that only a RESUME ends it
	ends     bool   // that is Release's own, so that nobody has ended it early
}

// Early is a database whose clients did not wait until the hold was released.
type Early struct {
	Database string // as pgbouncer/database
	By       string // who has ended it, for people
	// At is when, at the latest.
	At topology.Mono
}

// By whom a hold is ended early.
const (
	byOrder  = "`pgsteer pgbouncer resume` has ended it"
	byEnd    = "the agent ended, or its configuration changed, and everything was resumed"
	byOthers = "somebody else has ended it, by RESUME at PgBouncer's console or by a restart of PgBouncer"
)

// Early are those databases of the hold that were let go before Release, by others.
func (h *Hold) Early() (all []Early) {
	for _, b := range h.c.bouncers {
		b.mu.Lock()
		for _, n := range b.writes(h.cluster) {
			if e, ok := b.early[n]; ok && slices.Contains(h.Paused, e.Database) {
				all = append(all, e)
			}
		}
		b.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Early) int { return strings.Compare(a.Database, b.Database) })
	return all
}

// endEarly lets databases go whose hold somebody has ended.
func (b *bouncer) endEarly(names []string, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		if h := b.held[n]; h != nil && h.cluster != "" && !h.ends {
			b.tookEarly(n, by)
		}
		delete(b.held, n)
	}
}

// release are the databases that a cluster's switchover holds. They stay so until letGo:
// else the worker would resume them at the same time, which would look like others.
func (b *bouncer) release(cluster string) map[string]*holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]*holding)
	for n, h := range b.held {
		if h.cluster == cluster {
			h.ends, all[n] = true, h
		}
	}
	return all
}

// letGo ends the hold of databases after a try to resume them: what is still paused is
// owed from now on. gone are those that were not paused before it.
func (b *bouncer) letGo(held map[string]*holding, gone []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, h := range held {
		if b.held[n] != h {
			continue
		}
		if h.complete && slices.Contains(gone, n) {
			b.tookEarly(n, byOthers)
		}
		delete(b.held, n)
	}
}

// tookEarly notes it; b.mu is held.
func (b *bouncer) tookEarly(name, by string) {
	b.early[name] = Early{Database: b.Name + "/" + name, By: by, At: b.c.o.Now().Mono}
	b.log.Warn("a database is not paused any more although a switchover held it", "database", name, "by", by)
}

// holdings are the databases that a switchover has paused, for missed.
func (b *bouncer) holdings() map[string]*holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]*holding)
	for n, h := range b.held {
		if h.complete && !h.ends {
			all[n] = h
		}
	}
	return all
}

// missed lets those go that were held before PgBouncer was asked, and are not paused.
func (b *bouncer) missed(held map[string]*holding, there map[string]Database) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var gone []string
	for n, h := range held {
		if d, known := there[n]; known && !d.Paused && b.held[n] == h && !h.ends {
			b.tookEarly(n, byOthers)
			delete(b.held, n)
			gone = append(gone, n)
		}
	}
	if len(gone) > 0 {
		_ = b.c.begin().resumed(b.Name, gone) // what fails is written later, see rewrite
	}
}

// heldNote says whose hold an order to resume ends, "" for nobody's.
func (c *Control) heldNote(bouncer string, o Order) string {
	b := c.bouncers[bouncer]
	if b == nil || o.Action != Resume {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	var cluster string
	for n, h := range b.held {
		if h.cluster != "" && (len(o.Databases) == 0 || slices.Contains(o.Databases, n)) {
			names, cluster = append(names, n), h.cluster
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("a switchover of cluster %s held %s: it goes on, and clients do not wait for it any more", cluster, strings.Join(names, ", "))
}
