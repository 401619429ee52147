package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CheckHAProxy reports what "haproxy -c" takes although it would take the service
// away: a file without a listener (with -S, as distributions call it, exit code 0
// up to 3.0, and every version reloads into it), or one that lacks servers, since
// it was cut or its template forgot a pool (reference: haproxy 2.6 to 3.4,
// measured). It belongs to a text that was rendered from v.
func CheckHAProxy(text []byte, v View) error {
	var errs []error
	if !bytes.HasSuffix(text, []byte("\n")) {
		errs = append(errs, errors.New("it does not end with a line break, so its end may be missing"))
	}
	binds, words := false, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] == "bind":
			binds = true
		case fields[0] == "listen" && strings.Contains(fields[len(fields)-1], ":"):
			binds = true // the old form, "listen name address"
		case fields[0] == "server" && len(fields) > 2:
			words[fields[2]] = true
		}
	}
	if !binds {
		errs = append(errs, errors.New("it has no bind, so HAProxy would listen nowhere; does a pool have a `listen`?"))
	}
	for _, c := range v.Clusters {
		for _, p := range c.Pools {
			if i := slices.IndexFunc(p.Servers, func(s Server) bool { return s.Address.IsValid() && !words[s.Address.String()] }); i >= 0 {
				s := p.Servers[i]
				errs = append(errs, fmt.Errorf("pool %s/%s lacks its node %s at %s", c.Name, p.Name, s.Name, s.Address))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the text is no whole configuration of HAProxy: %w", err)
	}
	return nil
}
