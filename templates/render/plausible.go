package render

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckHAProxy reports what "haproxy -c" takes although it would take the service
// away: a file without a listener (with -S, as distributions call it, exit code 0
// up to 3.0, and every version reloads into it), or one that lacks servers, since
// it was cut or its template forgot a pool (reference: haproxy 2.6 to 3.4,
// measured). It belongs to a text that was rendered from v. Pools of the same nodes
// have the same addresses, so a node must stand in as many sections as there are pools
// which clients reach, those with a listen.
func CheckHAProxy(text []byte, v View) error {
	var errs []error
	if !bytes.HasSuffix(text, []byte("\n")) {
		errs = append(errs, errors.New("it does not end with a line break, so its end may be missing"))
	}
	binds, section, servers := false, 0, map[string]map[int]bool{} // sections by address
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "backend" || fields[0] == "listen") {
			section++
		}
		switch {
		case len(fields) < 2:
		case fields[0] == "bind":
			binds = true
		case fields[0] == "listen" && strings.Contains(fields[len(fields)-1], ":"):
			binds = true // the old form, "listen name address"
		case fields[0] == "server" && len(fields) > 2:
			if servers[fields[2]] == nil {
				servers[fields[2]] = map[int]bool{}
			}
			servers[fields[2]][section] = true
		}
	}
	if !binds {
		errs = append(errs, errors.New("it has no bind, so HAProxy would listen nowhere; does a pool have a `listen`?"))
	}
	errs = append(errs, lacking(v, servers)...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the text is no whole configuration of HAProxy: %w", err)
	}
	return nil
}

// lacking finds the servers of a view that do not stand in enough of the sections,
// which are given by address.
func lacking(v View, sections map[string]map[int]bool) (errs []error) {
	reached := map[string][]string{} // pools with a listen, by their servers' addresses
	for _, c := range v.Clusters {
		for _, p := range c.Pools {
			pool := c.Name + "/" + p.Name
			missing := slices.IndexFunc(p.Servers, func(s Server) bool { return s.Address.IsValid() && len(sections[s.Address.String()]) == 0 })
			if missing >= 0 {
				s := p.Servers[missing]
				errs = append(errs, fmt.Errorf("pool %s lacks its node %s at %s", pool, s.Name, s.Address))
				continue
			}
			for _, s := range p.Servers {
				at := s.Address.String()
				if s.Address.IsValid() && len(p.Listen) > 0 && !slices.Contains(reached[at], pool) { // two nodes may share an address
					reached[at] = append(reached[at], pool)
				}
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(reached)) {
		if pools, n := reached[at], len(sections[at]); n < len(pools) {
			return append(errs, fmt.Errorf("the pools %s have a listen and a node at %s, which stands in no more than %d of its sections, so a pool is missing", strings.Join(pools, ", "), at, n))
		}
	}
	return errs
}
