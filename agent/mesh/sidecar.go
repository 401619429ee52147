package mesh

import (
	"cmp"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"
)

// This file is about the checks of a sidecar. Consul's own are that it listens, looked at
// every 10 s, and that its service is healthy. A Consul agent that starts has every check
// that is no TTL check critical until it has looked for the first time (measured with
// 1.14), so that with Consul's own the mesh reaches no primary for up to 10 s after a
// restart of an agent. Looked at every second, the shortest that Consul takes, it is one.

const (
	sidecarSuffix = "-sidecar-proxy" // Consul's
	sidecarEvery  = time.Second
)

// listens is where a sidecar listens, by the rule of Consul's own check; empty: it has no
// port yet.
func listens(sidecar *api.AgentService) string {
	if sidecar.Port == 0 {
		return ""
	}
	var local string
	if sidecar.Proxy != nil {
		local = sidecar.Proxy.LocalServiceAddress
	}
	return net.JoinHostPort(cmp.Or(sidecar.Address, local, "127.0.0.1"), strconv.Itoa(sidecar.Port))
}

// sidecarNotes tells the check of this package from Consul's, and where it connects to,
// which Consul does not say.
func sidecarNotes(at string) string {
	return "written by pgsteer; connects to " + at + " every " + sidecarEvery.String()
}

// isChecked reports whether a sidecar that listens there has the check of this package.
func isChecked(checks map[string]*api.AgentCheck, at string) bool {
	if at == "" {
		return true
	}
	for _, c := range checks {
		if c.Notes == sidecarNotes(at) {
			return true
		}
	}
	return false
}

// sidecarChecks are the checks of the sidecar of an instance; nil, which are Consul's own,
// before Consul has chosen its port.
func sidecarChecks(id, at string) api.AgentServiceChecks {
	if at == "" {
		return nil
	}
	return api.AgentServiceChecks{
		{Name: "Connect Sidecar Listening", Notes: sidecarNotes(at), TCP: at, Interval: sidecarEvery.String()},
		{Name: "Connect Sidecar Aliasing " + id, AliasService: id},
	}
}
