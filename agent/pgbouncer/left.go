package pgbouncer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// left is what was left paused at PgBouncers that are configured no more: one status for
// each of those.
func left(all []Paused) (out []Status) {
	for _, p := range all { // by name
		if len(out) == 0 || out[len(out)-1].Bouncer != p.Bouncer {
			out = append(out, Status{Bouncer: p.Bouncer, Since: p.Since})
		}
		s := &out[len(out)-1]
		s.Paused, s.Err = append(s.Paused, p.Database), errors.Join(s.Err, p.left())
	}
	return out
}

// left says that a database was left paused, and how that ends.
func (p Paused) left() error {
	return fmt.Errorf("database %s was paused by pgsteer at PgBouncer %s (%s), which is not configured any more, so that its clients may wait: resume it with `%s`, and then have it struck off with `pgsteer pgbouncer forget %s %s`; or configure that PgBouncer again",
		p.Database, p.Bouncer, cmp.Or(p.Address, "an address that was not noted"), p.command(), p.Bouncer, shell(p.Database))
}

// command resumes it, without pgsteer.
func (p Paused) command() string {
	at := "-h HOST -p PORT"
	if host, port, err := place(p.Address); err == nil {
		at = fmt.Sprintf("-h %s -p %d", shell(host), port)
	}
	return fmt.Sprintf("psql %s -U %s -c %s %s", at, shell(cmp.Or(p.User, "USER")), shell("RESUME "+quoted(p.Database)), adminDatabase)
}

// shell quotes a word of a command for a shell, where that is needed.
func shell(word string) string {
	plain := func(r rune) bool {
		return !strings.ContainsRune("./_-:", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	if word != "" && !strings.ContainsFunc(word, plain) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// tellLeft logs what was left paused: where nothing will resume it, and where another
// PgBouncer may have taken the name.
func (c *Control) tellLeft() {
	r := c.begin()
	for _, p := range r.strangers(c.bouncers) {
		c.o.Logger.Error("a database stays paused", "pgbouncer", p.Bouncer, "database", p.Database, "address", p.Address, "since", p.Since, "err", p.left())
	}
	for _, p := range r.all() {
		if b := c.bouncers[p.Bouncer]; b != nil && p.Address != "" && p.Address != b.Address {
			c.o.Logger.Warn("a database was paused by pgsteer where this PgBouncer was before, and is resumed where it is now; if that is another one, resume it there by hand",
				"pgbouncer", p.Bouncer, "database", p.Database, "was", p.Address, "is", b.Address, "command", p.command())
		}
	}
}

// forget strikes off what was left paused at a PgBouncer that is configured no more;
// names are databases, none: all.
func (c *Control) forget(bouncer string, names []string) ([]string, error) {
	r := c.begin()
	struck := r.paused(bouncer)
	for _, n := range names {
		if !slices.Contains(struck, n) {
			return nil, fmt.Errorf("it is not noted that database %s was left paused at PgBouncer %s", n, bouncer)
		}
	}
	if len(names) > 0 {
		struck = names
	}
	if len(struck) == 0 {
		return nil, fmt.Errorf("there is no PgBouncer %s, and it is not noted that anything was left paused there", bouncer)
	}
	return struck, r.resumed(bouncer, struck)
}
