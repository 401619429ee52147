package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/switchover"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/watchers/patroni"
)

// commandAuthority is a command of the operator's own. It gets no secret.
func commandAuthority(cl config.Cluster) switchover.Authority {
	needsTo := slices.ContainsFunc(cl.Switchover.Command, func(arg string) bool { return strings.Contains(arg, config.PlaceholderTo) })
	return switchover.Authority{Name: "the command " + cl.Switchover.Command[0], RunsOn: true, NeedsTo: needsTo, Switch: func(ctx context.Context, from, to string) error {
		fill := strings.NewReplacer(config.PlaceholderCluster, cl.Name, config.PlaceholderFrom, from, config.PlaceholderTo, to)
		args := make([]string, len(cl.Switchover.Command))
		for i, a := range cl.Switchover.Command {
			args[i] = fill.Replace(a)
		}
		out, err := new(apply.Exec).Run(ctx, args)
		if err != nil && out != "" {
			return fmt.Errorf("%s: %w: %s", args[0], err, strings.Join(strings.Fields(out), " "))
		}
		return err
	}}
}

// patroniAuthority asks the leader's Patroni, and another member's when nobody is
// there: any of them writes the same key.
func (a *Agent) patroniAuthority(cl config.Cluster) (switchover.Authority, error) {
	sw := cl.Switchover
	secure := cl.Patroni
	if sw.CAFile+sw.CertFile != "" {
		secure.CAFile, secure.CertFile, secure.KeyFile = sw.CAFile, sw.CertFile, sw.KeyFile
	}
	tls, err := patroniTLS(secure, a.log)
	if err != nil {
		return switchover.Authority{}, err
	}
	v := a.views.Get(cl.Name)
	if v == nil || v.Facts == nil || v.Facts.Authority == nil {
		return switchover.Authority{}, fmt.Errorf("the Patroni of cluster %s was not heard yet, so that it is not known where to ask", cl.Name)
	}
	var urls []string // the leader's first
	for _, m := range v.Facts.Authority.Members {
		url := strings.TrimSuffix(strings.TrimRight(m.APIURL, "/"), "/patroni")
		switch {
		case url == "":
		case m.Name == v.Facts.Authority.Leader:
			urls = append([]string{url}, urls...)
		default:
			urls = append(urls, url)
		}
	}
	if len(urls) == 0 {
		return switchover.Authority{}, fmt.Errorf("no member of cluster %s says where its Patroni answers (api_url)", cl.Name)
	}
	return switchover.Authority{Name: "Patroni at " + urls[0], Switch: func(ctx context.Context, from, to string) error {
		password, err := passwordIn(sw.PasswordFile)
		if err != nil {
			return err
		}
		auth := ""
		if sw.User != "" {
			auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(sw.User+":"+password))
		}
		return patroni.Switchover(ctx, patroni.SwitchoverRequest{URLs: urls, TLS: tls, Authorization: auth, Leader: from, Candidate: to})
	}}, nil
}

// monitorAuthority does what pg_autoctl perform does: it calls the monitor's function.
func (a *Agent) monitorAuthority(cl config.Cluster) (switchover.Authority, error) {
	m, login := cl.Monitor, cl.Monitor.Login()
	if cl.Switchover.User != "" {
		login.User, login.PasswordFile = cl.Switchover.User, cl.Switchover.PasswordFile
	}
	tls, err := tlsFor(login, a.log)
	if err != nil {
		return switchover.Authority{}, fmt.Errorf("the monitor's %w", err)
	}
	return switchover.Authority{Name: "pg_auto_failover's monitor at " + m.Monitors[0].String(), Switch: func(ctx context.Context, _, to string) error {
		password, err := passwordIn(login.PasswordFile)
		if err != nil {
			return err
		}
		var errs []error
		for _, at := range m.Monitors {
			conn, err := dialMonitor(ctx, at, func(c *pgconn.Config) {
				c.User, c.Database, c.Password = login.User, login.Database, password
				if tls != nil {
					c.TLSConfig = tls(at.Host)
					if login.SSLMode == config.SSLPrefer {
						c.Fallbacks = []*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}
					}
				}
			})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			return perform(ctx, conn, m, to)
		}
		return errors.Join(errs...)
	}}, nil
}

func dialMonitor(ctx context.Context, at topology.Address, set func(*pgconn.Config)) (*pgconn.PgConn, error) {
	c, err := pgconn.ParseConfig("host=replaced user=replaced dbname=replaced sslmode=disable")
	if err != nil {
		return nil, err
	}
	c.Host, c.Port, c.Fallbacks = at.Host, at.Port, nil
	c.RuntimeParams = map[string]string{"application_name": "pgsteer switchover"}
	set(c)
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("log in to the monitor at %s as %s: %w", at, c.User, err)
	}
	return conn, nil
}

// perform starts the failover to a node, or to one of the monitor's choice; then the
// keepers carry it out.
func perform(ctx context.Context, conn *pgconn.PgConn, m config.Monitor, to string) error {
	query, args := "SELECT pgautofailover.perform_promotion($1::text, $2::text)", [][]byte{[]byte(m.Formation), []byte(to)}
	if to == "" {
		query, args = "SELECT pgautofailover.perform_failover($1::text, $2::int)", [][]byte{[]byte(m.Formation), fmt.Append(nil, m.Group)}
	}
	if _, err := conn.ExecParams(ctx, query, args, nil, nil, nil).Close(); err != nil {
		return fmt.Errorf("the monitor refuses: %w", err)
	}
	return nil
}
