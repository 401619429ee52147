package admin

import "net/http"

// Caller is who asks: the name of the token, and the host.
type Caller struct{ Name, From string }

// Guarded serves calls of another package to those who may change things, as often as
// they may, with the refusals of this one.
func (s *Server) Guarded(serve func(http.ResponseWriter, *http.Request, Caller)) http.Handler {
	return s.guarded(admin, func(w http.ResponseWriter, c call) { serve(w, c.Request, Caller{c.caller.name, c.from}) })
}
