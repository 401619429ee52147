package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func (c *Config) checkTemplates(s scope) {
	names := make(map[string]bool)
	destinations := make(map[string]string)
	for i, t := range c.Templates {
		in := s.in("templates").in(strconv.Itoa(i))
		t.check(in)
		if t.Runtime && len(c.HAProxy.Sockets) == 0 && s.d.legible("haproxy\x00sockets") {
			in.fault("runtime", "there is no haproxy.sockets over which servers could be changed")
		}
		c.checkRoles(in, t)
		if names[t.Name] && t.Name != "" {
			in.fault("name", "a template named %s is there already", t.Name)
		}
		names[t.Name] = true
		for j, cluster := range t.Clusters {
			if _, ok := c.Cluster(cluster); !ok && s.d.legible("clusters") {
				in.in("clusters").fault(strconv.Itoa(j), "no such cluster: %s", UnknownWord(cluster, c.ClusterNames()))
			}
		}
		for j, f := range t.Files {
			if other, ok := destinations[f.Destination]; ok && f.Destination != "" {
				in.in("files").in(strconv.Itoa(j)).fault("destination", "%s is written by template %s already", f.Destination, other)
			}
			destinations[f.Destination] = t.Name
		}
	}
}

// checkRoles: what names the writer says so, and is made for one PgBouncer.
func (c *Config) checkRoles(s scope, t Template) {
	for i, f := range t.Files {
		if f.IsPgBouncer() && !t.Roles {
			s.fault("roles", "a file of PgBouncer, which has no checks, names the writer: that takes `roles: true`")
		}
		if f.IsPgBouncer() && t.PgBouncer == "" && s.d.legible(s.in("pgbouncer").at) && !s.d.unsound[s.in("pgbouncer").at] {
			s.in("files").in(strconv.Itoa(i)).fault("builtin", "which PgBouncer is the file for? Name one of `pgbouncers` with `pgbouncer`")
		}
		if f.IsHAProxy() && t.Roles {
			s.fault("roles", "a file of HAProxy never names the writer: its checks ask, and a change of roles needs no reload")
		}
	}
	if t.PgBouncer == "" {
		return
	}
	b, ok := c.Bouncer(t.PgBouncer)
	var names []string
	for _, b := range c.PgBouncers {
		names = append(names, b.Name)
	}
	if !ok && c.bouncersNamed(s.d) {
		s.fault("pgbouncer", "no such PgBouncer: %s", UnknownWord(t.PgBouncer, names))
	}
	if len(t.Reload) > 0 || t.ReloadUnit != "" || t.MasterSocket != "" {
		s.fault("pgbouncer", "the console of PgBouncer %s reloads it; reload, reload_unit and master_socket have no place beside it", t.PgBouncer)
	}
	for _, d := range b.Databases {
		if written := slices.ContainsFunc(t.Files, File.IsPgBouncer); written && d.Name != "" && !plainDatabase.MatchString(d.Name) {
			s.fault("pgbouncer", "database %s cannot stand in PgBouncer's file: up to 63 letters, digits, '_', '.' and '-'", quote(d.Name))
		}
		if _, known := c.Cluster(d.Pool.Cluster); known && !t.Covers(d.Pool.Cluster) {
			s.fault("clusters", "database %s of PgBouncer %s leads to cluster %s, which this template does not render", d.Name, b.Name, d.Pool.Cluster)
		}
	}
}

// bouncersNamed reports whether the PgBouncers are all that the file has, by name.
func (c *Config) bouncersNamed(d *decoder) bool {
	return d.legible("pgbouncers") && !slices.ContainsFunc(c.PgBouncers, func(b PgBouncer) bool { return b.Name == "" })
}

func (t Template) check(s scope) {
	if t.Name == "" {
		s.fault("name", "a template needs a name")
	} else if err := topology.CheckName(t.Name); err != nil {
		s.fault("name", "%v", err)
	}
	if len(t.Files) == 0 {
		s.fault("files", "template %s has no files", t.Name)
	}
	for i, f := range t.Files {
		f.check(s.in("files").in(strconv.Itoa(i)))
	}
	t.checkArguments(s, "check", t.Check)
	t.checkArguments(s, "reload", t.Reload)
	t.checkCheck(s)
	t.checkUnit(s)
	if s.written("preflight") && t.Preflight && !t.IsHAProxy() && t.kindsKnown(s) {
		s.fault("preflight", "preflight has no effect: no file is known to be for HAProxy, by `builtin` or `expect`, and there is no `master_socket`")
	}
	s.positive("timeout", t.Timeout)
	s.positive("reload_interval", t.ReloadInterval)
}

// kindsKnown reports whether nothing that would tell what the files are has a fault.
func (t Template) kindsKnown(s scope) bool {
	for i := range t.Files {
		f := s.in("files").in(strconv.Itoa(i))
		if s.d.unsound[f.in("builtin").at] || s.d.unsound[f.in("expect").at] || !s.d.legible(f.at) {
			return false
		}
	}
	return s.d.legible(s.in("files").at) && !s.d.unsound[s.in("master_socket").at]
}

// checkCheck wants a test of the new file, not of the one that is live, and
// wants one for HAProxy, which loads a bad file only to end.
func (t Template) checkCheck(s scope) {
	staged := func(arg string) bool { return strings.Contains(arg, ".Staged") }
	if len(t.Check) > 0 && !slices.ContainsFunc(t.Check, staged) {
		s.fault("check", "no argument holds %s, so the check would test another file than the new one", PlaceholderStaged)
	}
	for _, f := range t.Files {
		if f.IsHAProxy() && len(t.Check) == 0 {
			s.fault("check", "a file for HAProxy needs a check: [haproxy, -c, -f, %q]", PlaceholderStaged)
		}
	}
}

// unitName is a unit that can be reloaded, by systemd.unit(5): an instance of a
// template included.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]*)?\.service$`)

func (t Template) checkUnit(s scope) {
	if t.ReloadUnit == "" {
		return
	}
	if len(t.Reload) > 0 {
		s.fault("reload_unit", "reload and reload_unit exclude each other")
	}
	if !unitName.MatchString(t.ReloadUnit) {
		s.fault("reload_unit", "%s is no service of systemd such as haproxy.service", quote(t.ReloadUnit))
	}
}

func (f File) check(s scope) {
	switch {
	case f.Builtin == "" && f.Source == "" && (s.d.unsound[s.in("builtin").at] || s.d.unsound[s.in("source").at]):
	case f.Builtin == "" && f.Source == "":
		s.fault("source", "a file needs a `source`, or the name of a `builtin` template")
	case f.Builtin != "" && f.Source != "":
		s.fault("source", "builtin and source exclude each other")
	}
	switch f.Destination {
	case "":
		s.fault("destination", "a file needs a destination")
	case f.Source:
		s.fault("destination", "the destination is the template itself")
	}
}

// checkArguments refuses commands that cannot be run and placeholders that
// would stay as they are.
func (t Template) checkArguments(s scope, key string, args []string) {
	if len(args) == 0 {
		return
	}
	in := s.in(key)
	if strings.TrimSpace(args[0]) == "" || strings.Contains(args[0], "{{") {
		in.fault("0", "the first argument is the command itself, a name or a path")
	}
	for i, arg := range args {
		for _, err := range checkPlaceholders(arg, key == "check", len(t.Files)) {
			in.fault(strconv.Itoa(i), "%v", err)
		}
	}
}

// checkPlaceholders reads them as package apply does: {{.Staged}} is the first
// file, {{.Staged 2}} the second.
func checkPlaceholders(arg string, staged bool, files int) (faults []error) {
	known := PlaceholderDestination
	if staged {
		known = PlaceholderStaged + " and " + PlaceholderDestination
	}
	for {
		i := strings.Index(arg, "{{")
		if i < 0 {
			return faults
		}
		inner, rest, closed := strings.Cut(arg[i+2:], "}}")
		words := strings.Fields(inner)
		name := ""
		if len(words) > 0 {
			name = words[0]
		}
		switch {
		case !closed || len(words) > 2 || name != ".Destination" && (name != ".Staged" || !staged):
			faults = append(faults, fmt.Errorf("unknown placeholder %s, known here: %s, with a number for the second and later files", quote(arg[i:len(arg)-len(rest)]), known))
		case len(words) == 2:
			if n, err := strconv.Atoi(words[1]); err != nil || n < 1 || n > files {
				faults = append(faults, fmt.Errorf("placeholder %s: the group has %d files", quote(arg[i:len(arg)-len(rest)]), files))
			}
		}
		arg = rest
	}
}
