package postgres

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// config returns the settings of one connection attempt, with the password of
// this moment. PG* variables of the environment count for nothing that an
// option can say.
func (p *Prober) config(password string, l *link) (*pgconn.Config, error) {
	c, err := pgconn.ParseConfig("host=replaced user=replaced dbname=replaced sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("connection settings of node %s: %w", p.o.Node, err)
	}
	c.Host, c.Port = p.o.Address.Host, p.o.Address.Port
	c.User, c.Database, c.Password = p.o.User, p.o.Database, password
	c.Fallbacks, c.ValidateConnect, c.ConnectTimeout = nil, nil, 0
	c.RuntimeParams = map[string]string{
		"application_name": "pgsteer",
		"search_path":      "pg_catalog",
		"client_encoding":  "UTF8",
	}
	if p.o.TLS != nil {
		c.TLSConfig = p.o.TLS.Clone()
		if c.TLSConfig.ServerName == "" {
			c.TLSConfig.ServerName = p.o.Address.Host
		}
		if p.o.PlainToo {
			c.Fallbacks = []*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}
		}
	}
	c.LookupFunc = p.o.Lookup
	c.DialFunc = l.dial
	return c, nil
}

// link is the socket under one connection attempt.
type link struct {
	p    *Prober
	up   atomic.Bool // logged in: from here on only a cancel request would dial
	conn atomic.Pointer[conn]
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.up.Load() {
		return nil, errNoCancel
	}
	c, err := l.p.o.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	k := l.p.conns.add(c)
	l.conn.Store(k)
	return k, nil
}

// giveUp tells the socket that its answer is overdue.
func (l *link) giveUp() {
	if c := l.conn.Load(); c != nil {
		c.giveUp()
	}
}

// login makes one connection, or says why not.
func (p *Prober) login(ctx context.Context, timeout time.Duration) (*pgconn.PgConn, *link, *topology.Failure) {
	if n := p.conns.unanswered(); n >= lingerMost {
		return nil, nil, p.failure(topology.FailTimeout,
			fmt.Sprintf("%d earlier connections to %s are still unanswered, no further one is tried", n, p.o.Address))
	}
	password := p.o.Password()
	if class, text := p.gate.shut(p.o.Now().Mono, password); class != "" {
		f := p.alive(ctx, timeout)
		if f == nil {
			f = p.failure(class, "the server is alive but refused the last login, the next one follows within a minute: "+text)
		}
		return nil, nil, f
	}
	l := &link{p: p}
	c, err := p.config(password, l)
	if err != nil {
		return nil, nil, p.failure(topology.FailLocal, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pg, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		class := classOf(err)
		if p.o.PlainToo {
			class = classOf(withoutOffer(err))
		}
		if class == topology.FailTimeout {
			l.giveUp()
		}
		text := fmt.Sprintf("login to %s as %s, database %s: %s", p.o.Address, p.o.User, p.o.Database, plain(err))
		p.gate.note(p.o.Now().Mono, class, password, text)
		return nil, nil, p.failure(class, text)
	}
	l.up.Store(true)
	return pg, l, nil
}

// aliveRequest is a GSSENCRequest: four bytes of length, four of code. The
// server answers one byte before it looks at any credential. Of the two requests
// of this form it is the one that PostgreSQL does not log when the client then
// leaves: after an SSLRequest that a server with ssl = on answered with S, it
// logs "could not accept SSL connection: EOF detected" (measured on 15).
var aliveRequest = [8]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30}

// alive stands in for a login that the gate holds back: it asks whether a
// PostgreSQL is there at all, and returns nil if so.
func (p *Prober) alive(ctx context.Context, timeout time.Duration) *topology.Failure {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l := &link{p: p}
	c, err := p.dialAny(ctx, l)
	if err == nil {
		err = ask(ctx, c)
		_ = c.Close()
	}
	if err != nil {
		class := classOf(err)
		if class == topology.FailTimeout {
			l.giveUp()
		}
		return p.failure(class, fmt.Sprintf("liveness of %s: %s", p.o.Address, plain(err)))
	}
	return nil
}

// dialAny connects to the first address of the node's name that accepts.
func (p *Prober) dialAny(ctx context.Context, l *link) (net.Conn, error) {
	hosts, err := p.o.Lookup(ctx, p.o.Address.Host)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("the name %s has no address", p.o.Address.Host)
	for _, h := range hosts {
		var c net.Conn
		network, address := pgconn.NetworkAddress(h, p.o.Address.Port)
		if c, err = l.dial(ctx, network, address); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// ask sends the request and reads the one byte of its answer.
func ask(ctx context.Context, c net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.Write(aliveRequest[:]); err != nil {
		return err
	}
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	switch b[0] {
	case 'N', 'G', 'S', 'E': // no, yes, yes for TLS, or an error: a PostgreSQL in any case
		return nil
	}
	return fmt.Errorf("answered with byte 0x%02x, which no PostgreSQL does", b[0])
}
