package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/pgsteer/pgsteer/agent/config"
)

func runningAgent(ctx context.Context, x *exam) []Result {
	if x.Agent == nil {
		return nil
	}
	a := x.ask(ctx)
	if a == nil {
		return []Result{{Level: OK, Tried: "ask its status listener and its socket", Found: "none runs by this configuration"}}
	}
	r := Result{Level: OK, Tried: "ask it for its status", Found: "version " + a.Version + " runs"}
	if a.Silent != nil {
		r.Level, r.Found = Fail, "it is there and does not answer: "+a.Silent.Error()
		r.Do = "look whether it is stopped or its host overloaded (systemctl status pgsteer); balancers stay as they were told last"
	}
	if a.ConfigError != "" {
		r.Level, r.Found, r.Do = Warn, "the last reload was refused: "+a.ConfigError, "correct the file; what ran before goes on"
	}
	all := []Result{r}
	for _, sink := range slices.Sorted(maps.Keys(a.Failing)) {
		do := "see pgsteer status"
		if strings.HasPrefix(sink, "template ") {
			do = "mend what it names: what ran before goes on, and the new files are tried again within a minute, and on a reload of pgsteer"
		}
		all = append(all, Result{Subject: sink, Level: Warn, Tried: "ask the agent how it fares", Found: a.Failing[sink], Do: do})
	}
	return all
}

// listener is an address that the agent binds.
type listener struct {
	key     string
	address config.ListenAddress
}

func listenersOf(c *config.Config) []listener {
	all := []listener{
		{"listen.agent_check", c.Listen.AgentCheck},
		{"listen.health", c.Listen.Health},
		{"listen.health_tls", c.Listen.HealthTLS.Address},
		{"listen.status_tls", c.Listen.StatusTLS.Address},
		{"listen.status", c.Listen.Status},
		{"listen.xds", c.Listen.XDS},
	}
	for _, p := range c.AgentCheck.Ports {
		all = append(all, listener{"agent_check.ports for " + p.Server.String(), p.Listen})
	}
	return slices.DeleteFunc(all, func(l listener) bool { return l.address.Off() })
}

func listeners(ctx context.Context, x *exam) []Result {
	own := make(map[string]bool) // ports that the running agent has bound
	if a := x.ask(ctx); a != nil {
		if a.Silent != nil {
			return nil // they are probably its own
		}
		for _, address := range a.Listeners {
			if _, port, err := net.SplitHostPort(address); err == nil {
				own[port] = true
			}
		}
	}
	var all []Result
	for _, l := range listenersOf(x.Config) {
		_, port := l.address.HostPort()
		all = append(all, bindable(ctx, l, own[strconv.Itoa(int(port))]))
	}
	return all
}

// bindable tries an address that is not the running agent's own.
func bindable(ctx context.Context, l listener, own bool) Result {
	_, port := l.address.HostPort()
	r := Result{Subject: l.key + " " + string(l.address), Level: OK, Tried: "bind it", Found: "can be bound"}
	if own {
		r.Tried, r.Found = "ask the running agent", "the running agent's own"
		return r
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", string(l.address))
	if err == nil {
		_ = ln.Close()
		return r
	}
	r.Level, r.Found = Fail, err.Error()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		r.Do = fmt.Sprintf("find who has it with ss -ltnp 'sport = :%d', and end that, or choose another port", port)
	case errors.Is(err, syscall.EACCES):
		r.Do = "take a port from 1024 on, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		r.Do = "this host has no such address: take one of its own, or net.ipv4.ip_nonlocal_bind for one that moves"
	default:
		r.Do = "choose another address"
	}
	return r
}

func poolPorts(ctx context.Context, x *exam) []Result {
	if len(x.Config.HAProxy.Sockets) == 0 {
		return nil // whoever offers them may stand elsewhere
	}
	var all []Result
	for _, cl := range x.Config.Clusters {
		for _, p := range cl.Pools {
			if !p.Listen.Off() {
				all = append(all, x.listening(ctx, cl.Name+"/"+p.Name, p.Listen))
			}
		}
	}
	return all
}

func (x *exam) listening(ctx context.Context, pool string, at config.ListenAddress) Result {
	host, port := at.HostPort()
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	r := Result{Subject: "pool " + pool + " " + string(at), Level: OK, Tried: "connect to it", Found: "somebody listens"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := x.Dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		r.Level, r.Found, r.Do = Warn, err.Error(), "see whether HAProxy runs with the rendered file, and has taken its last reload"
		return r
	}
	_ = c.Close()
	return r
}
