package admin

import "net/http"

// Caller is who asks: the name of the token, and the host.
type Caller struct{ Name, From string }

// Guarded serves calls of another package to those who may change things, as often as
// they may, with the refusals of this one. A call of somebody who may not is a line in
// the log with that message and target.
func (s *Server) Guarded(message string, target func(*http.Request) string, serve func(http.ResponseWriter, *http.Request, Caller)) http.Handler {
	return s.guarded(admin, subject{message, target}, func(w http.ResponseWriter, c call) { serve(w, c.Request, Caller{c.caller.name, c.from}) })
}
