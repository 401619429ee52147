package config

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

func (p Patroni) check(s scope) {
	if p.Scope == "" || strings.Contains(p.Scope, "/") {
		s.fault("scope", "scope %s must be a text without slashes, as in Patroni's own configuration", quote(p.Scope))
	}
	if p.Source == SourceREST {
		p.checkREST(s)
		return
	}
	if p.Group != "" && !isGroup(p.Group) {
		s.fault("group", "group %s is no number of a Citus group, such as 0 for the coordinator's", quote(p.Group))
	}
	if strings.Trim(p.Namespace, "/") == "" {
		s.fault("namespace", "namespace %s is empty; Patroni's default is service", quote(p.Namespace))
	}
	for _, key := range []string{"endpoints", "ca_file", "cert_file", "key_file", "server_name"} {
		if s.written(key) && !s.d.unsound[s.in("source").at] {
			s.fault(key, "%s has no effect without `source: rest`; how Consul is reached is said by `consul` at the top of the file", key)
		}
	}
}

func (p Patroni) checkREST(s scope) {
	s.pair("cert_file", "key_file", p.CertFile, p.KeyFile)
	for _, key := range []string{"namespace", "group"} {
		if s.written(key) {
			s.fault(key, "%s has no effect with `source: rest`, which asks for no key", key)
		}
	}
	if len(p.Endpoints) == 0 {
		s.fault("endpoints", "`source: rest` needs `endpoints`: where Patroni's members answer, such as [http://10.0.0.1:8008, http://10.0.0.2:8008]")
		return
	}
	secure := func(e string) bool { return strings.HasPrefix(strings.ToLower(e), "https://") }
	if p.CAFile+p.CertFile+p.KeyFile+p.ServerName != "" && !slices.ContainsFunc(p.Endpoints, secure) {
		s.fault("endpoints", "no endpoint begins with https://, so that the certificates beside them would not be used")
	}
}

// checkEndpoints refuses what is no address of a REST interface, and one that is
// listed already, here or for another cluster: a Patroni serves one. seen is by
// address, with the cluster that lists it.
func (p Patroni) checkEndpoints(s scope, cluster string, seen map[string]string) {
	for i, e := range p.Endpoints {
		key := strconv.Itoa(i)
		u, err := url.Parse(e)
		switch {
		case strings.Contains(e, "@"):
			s.fault(key, "an endpoint may not hold a user or password; Patroni wants them for changes alone, and pgsteer makes none")
			s.d.hide(s.d.marks[s.in(key).at], 0)
			continue
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			s.fault(key, "%s is not a URL such as https://10.0.0.1:8008", quote(e))
			continue
		case u.Port() == "":
			s.fault(key, "%s has no port; Patroni's is 8008 unless its configuration says otherwise", quote(e))
			continue
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			s.fault(key, "%s must be a scheme, a host and a port only", quote(e))
			continue
		}
		at := strings.ToLower(net.JoinHostPort(u.Hostname(), u.Port()))
		if other, ok := seen[at]; ok {
			s.fault(key, "endpoint %s is listed for cluster %s already", e, other)
			continue
		}
		seen[at] = cluster
	}
}
