package admin

import "net/http"

// Caller is who asks for a change.
type Caller struct {
	by, name string // what shows who it is, and the name in that
	from     string // the host
}

// Audit is who asks and from where, as every line of the log of a change has it: token or
// certificate with its name, and from.
func (c Caller) Audit() []any { return []any{c.by, c.name, "from", c.from} }

// Guarded serves calls of another package to those who may change things, as often as
// they may, with the refusals of this one. A call of somebody who may not is a line in
// the log with that message and target.
func (s *Server) Guarded(message string, target func(*http.Request) string, serve func(http.ResponseWriter, *http.Request, Caller)) http.Handler {
	return s.guarded(admin, subject{message, target}, func(w http.ResponseWriter, c call) { serve(w, c.Request, c.who()) })
}
