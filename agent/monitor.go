package agent

import (
	"fmt"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// monitor makes the source of the word of pg_auto_failover's monitor.
func (w *watch) monitor() (authoritySource, error) {
	m := w.cluster.Monitor
	login := m.Login()
	secure, err := tlsFor(login, w.log)
	if err != nil {
		return nil, fmt.Errorf("the monitor's %w", err)
	}
	if w.monitorPassword, err = w.passwordOf(login); err != nil {
		return nil, err
	}
	return pgautofailover.New(pgautofailover.Options{
		Cluster: w.cluster.Name, Monitors: m.Monitors, Formation: m.Formation, Group: m.Group,
		User: m.User, Database: m.Database, Password: w.monitorPassword, TLS: secure, PlainToo: m.SSLMode == config.SSLPrefer,
		Addresses: pgautofailover.Addresses(m.Addresses), Poll: m.Interval, Timeout: m.Timeout,
		Now: w.now, Logger: w.base.With("component", "pg_auto_failover"),
	})
}
