package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Database is a database of a PgBouncer.
type Database struct {
	Name    string // as clients of PgBouncer call it
	DBName  string // as the nodes do
	Cluster string
	Pool    string // where it leads
}

// Leads is the server that a database leads to now.
func (v View) Leads(d Database) (Server, error) {
	for _, c := range v.Clusters {
		for _, p := range c.Pools {
			if c.Name == d.Cluster && p.Name == d.Pool && len(p.Serving) > 0 {
				return p.Serving[0], nil
			}
		}
	}
	return Server{}, fmt.Errorf("nobody serves pool %s/%s, where database %s leads", d.Cluster, d.Pool, quoted(d.Name))
}

// Place is host and port as PgBouncer's SHOW DATABASES has them.
func (s Server) Place() string { return fmt.Sprintf("%s:%d", s.Host, s.Port) }

// serving is who a file names for a pool: in a write pool the node that is up; in a
// read pool before as long as it is up, else the first that is. While there is none,
// before stays. A read pool of which everybody is known to be out has its first node,
// since a file for the writer must not wait for that; before anything is decided
// there is nobody.
func serving(p topology.PoolVerdicts, pool Pool, before string) []Server {
	var up, all []Server
	for _, s := range pool.Servers {
		if !s.Address.IsValid() {
			continue
		}
		all = append(all, s)
		if v, ok := p.Verdict(s.Name); ok && v.Verdict == topology.Up {
			up = append(up, s)
		}
	}
	is := func(s Server) bool { return s.Name == before }
	stays := slices.IndexFunc(all, is)
	switch {
	case len(up) > 0 && (pool.IsWrite() || !slices.ContainsFunc(up, is)):
		return up[:1]
	case stays >= 0:
		return all[stays : stays+1]
	case len(all) > 0 && !pool.IsWrite() && !p.Undecided():
		return all[:1]
	}
	return nil
}

// Unnamed are the pools that a file must name somebody for, and cannot: those of
// Databases, or without any the write pools.
func Unnamed(v View) (pools []string) {
	for _, c := range v.Clusters {
		for _, p := range c.Pools {
			wanted := len(v.Databases) == 0 && p.IsWrite() ||
				slices.ContainsFunc(v.Databases, func(d Database) bool { return d.Cluster == c.Name && d.Pool == p.Name })
			if wanted && len(p.Serving) == 0 {
				pools = append(pools, c.Name+"/"+p.Name)
			}
		}
	}
	return pools
}

// Named is whom a view names, by pool.
func Named(v View) map[PoolID]string {
	all := make(map[PoolID]string)
	for _, c := range v.Clusters {
		for _, p := range c.Pools {
			for _, s := range p.Serving {
				all[PoolID{c.Name, p.Name}] = s.Name
			}
		}
	}
	return all
}

// CheckPgBouncer reports what PgBouncer, which has no test of its files, would take
// although it leads clients astray: a database that is missing, is there twice, or has
// several hosts, of which an added one drops the connections to all (PgBouncer issue
// 1536). The text is that of a file with the section [databases] and nothing else.
func CheckPgBouncer(text []byte, v View) error {
	var errs []error
	if !bytes.HasSuffix(text, []byte("\n")) {
		errs = append(errs, errors.New("it does not end with a line break, so its end may be missing"))
	}
	section, lines := false, make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, value, entry := strings.Cut(line, " = ")
		switch {
		case line == "" || strings.HasPrefix(line, ";"):
		case strings.HasPrefix(line, "["):
			if section || line != "[databases]" {
				errs = append(errs, fmt.Errorf("it has section %s, and [databases] alone is expected, once", quoted(line)))
			}
			section = true
		case !section || !entry:
			errs = append(errs, fmt.Errorf("line %s is no entry of [databases]", quoted(line)))
		default:
			lines[name] = append(lines[name], value)
		}
	}
	for _, d := range v.Databases {
		errs = append(errs, v.checkEntry(d, lines))
		name, _ := pgbouncerName(d.Name) // its error is that of checkEntry
		delete(lines, name)
	}
	for name := range lines {
		errs = append(errs, fmt.Errorf("entry %s is no database of this PgBouncer", quoted(name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the text is not what this PgBouncer needs: %w", err)
	}
	return nil
}

// checkEntry wants one line for a database, with the one host that it leads to.
func (v View) checkEntry(d Database, lines map[string][]string) error {
	name, err := pgbouncerName(d.Name)
	if err != nil {
		return err
	}
	s, err := v.Leads(d)
	if err != nil {
		return err
	}
	host, err := pgbouncerQuote(s.Host)
	if err != nil {
		return err
	}
	switch found := lines[name]; {
	case len(found) != 1:
		return fmt.Errorf("database %s is there %d times, once is right", quoted(d.Name), len(found))
	case !strings.HasPrefix(found[0], fmt.Sprintf("host=%s port=%d ", host, s.Port)):
		return fmt.Errorf("database %s does not begin with the host and port of %s, %s:%d", quoted(d.Name), s.Name, s.Host, s.Port)
	}
	return nil
}
