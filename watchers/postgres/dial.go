package postgres

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// door is one way to a server: an address, the sockets behind it, and what is
// remembered of refusals. The probe's session and the fresh logins share one;
// every question beside them has its own, so that sockets which wait there for
// an answer never keep the probe out.
type door struct {
	o        *Options
	address  topology.Address
	settings map[string]string // the session's own, sent with the login; they never change
	conns    *conns
	gate     *gate
	// class sorts what goes wrong behind the door; nil: classOf.
	class func(error) topology.FailureClass

	mu    sync.Mutex    // guards tried
	tried topology.Mono // when a connection was last tried; zero: as good as never
}

// newDoor returns a door. heard is called when a connection that was given up
// hears something: then somebody lives there and can be asked at once.
func newDoor(o *Options, address topology.Address, heard func()) *door {
	d := &door{o: o, address: address, gate: new(gate)}
	d.conns = newConns(func() {
		d.mu.Lock()
		d.tried = 0
		d.mu.Unlock()
		heard()
	})
	return d
}

// defaults are the settings of every connection. PG* variables of the environment
// are looked at once, and count for nothing that an option can say.
var defaults = sync.OnceValues(func() (*pgconn.Config, error) {
	return pgconn.ParseConfig("host=replaced user=replaced dbname=replaced sslmode=disable")
})

// config returns the settings of one connection attempt, with the password of
// this moment.
func (d *door) config(password string, l *link) (*pgconn.Config, error) {
	base, err := defaults()
	if err != nil {
		return nil, fmt.Errorf("connection settings of node %s: %w", d.o.Node, err)
	}
	c := base.Copy()
	c.Host, c.Port = d.address.Host, d.address.Port
	c.User, c.Database, c.Password = d.o.User, d.o.Database, password
	c.Fallbacks, c.ValidateConnect, c.ConnectTimeout = nil, nil, 0
	c.RuntimeParams = map[string]string{"application_name": "pgsteer", "client_encoding": "UTF8"}
	maps.Copy(c.RuntimeParams, d.settings)
	if d.o.TLS != nil {
		c.TLSConfig = d.o.TLS.Clone()
		if c.TLSConfig.ServerName == "" {
			c.TLSConfig.ServerName = d.address.Host
		}
		if d.o.PlainToo {
			c.Fallbacks = []*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}
		}
	}
	c.LookupFunc = d.o.Lookup
	c.DialFunc = l.dial
	return c, nil
}

// link is the socket under one connection attempt.
type link struct {
	door *door
	up   atomic.Bool // logged in: from here on only a cancel request would dial
	conn atomic.Pointer[conn]
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.up.Load() {
		return nil, errNoCancel
	}
	c, err := l.door.o.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	k := l.door.conns.add(c)
	if k == nil {
		_ = c.Close()
		return nil, errNoCancel
	}
	l.conn.Store(k)
	return k, nil
}

// giveUp tells the socket that its answer is overdue.
func (l *link) giveUp() {
	if c := l.conn.Load(); c != nil {
		c.giveUp()
	}
}

// crowded returns how many connections are unanswered when they are so many
// that a further one must wait a while, else zero.
func (d *door) crowded() int {
	n, now := d.conns.unanswered(), d.o.Now().Mono
	d.mu.Lock()
	defer d.mu.Unlock()
	if n >= lingerMost && d.tried != 0 && now.Sub(d.tried) < crowdedAgain {
		return n
	}
	d.tried = now
	return 0
}

// login opens one session, or says why not.
func (d *door) login(ctx context.Context, timeout time.Duration) (*wire, *topology.Failure) {
	if n := d.crowded(); n > 0 {
		return nil, d.o.failure(topology.FailTimeout, fmt.Sprintf(
			"%d earlier connections to %s are still unanswered, a further one is tried every %s", n, d.address, crowdedAgain))
	}
	password := d.o.Password()
	if class, text := d.gate.shut(d.o.Now().Mono, password); class != "" {
		f := d.alive(ctx, timeout)
		if f == nil {
			f = d.o.failure(class, "the server is alive but refused the last login, the next one follows within a minute: "+text)
		}
		return nil, f
	}
	l := &link{door: d}
	c, err := d.config(password, l)
	if err != nil {
		return nil, d.o.failure(topology.FailLocal, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w, err := l.login(ctx, c)
	if err != nil {
		class := d.sort(err)
		if isTimeout(err) {
			l.giveUp()
		}
		text := fmt.Sprintf("login to %s as %s, database %s: %s", d.address, d.o.User, d.o.Database, plain(err))
		d.gate.note(d.o.Now().Mono, class, password, text)
		return nil, d.o.failure(class, text)
	}
	return w, nil
}

// login logs in over the link.
func (l *link) login(ctx context.Context, c *pgconn.Config) (*wire, error) {
	var s *speaker
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		s = lend(r, w)
		return s.Frontend
	}
	pg, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	l.up.Store(true)
	return takeOver(ctx, pg, s, l)
}

// sort returns the class of a login's error.
func (d *door) sort(err error) topology.FailureClass {
	if d.o.PlainToo {
		err = withoutOffer(err)
	}
	if d.class != nil {
		return d.class(err)
	}
	return classOf(err)
}

// aliveRequest is a GSSENCRequest: four bytes of length, four of code. The
// server answers one byte before it looks at any credential. Of the two requests
// of this form it is the one that PostgreSQL does not log when the client then
// leaves: after an SSLRequest that a server with ssl = on answered with S, it
// logs "could not accept SSL connection: EOF detected" (measured on 15).
var aliveRequest = [8]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30}

// alive stands in for a login that the gate holds back: it asks whether a
// PostgreSQL is there at all, and returns nil if so.
func (d *door) alive(ctx context.Context, timeout time.Duration) *topology.Failure {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l := &link{door: d}
	c, err := d.dialAny(ctx, l)
	if err == nil {
		err = ask(ctx, c)
		_ = c.Close()
	}
	if err != nil {
		class := classOf(err)
		if class == topology.FailTimeout {
			l.giveUp()
		}
		return d.o.failure(class, fmt.Sprintf("liveness of %s: %s", d.address, plain(err)))
	}
	return nil
}

// dialAny connects to the first address of the door's host that accepts.
func (d *door) dialAny(ctx context.Context, l *link) (net.Conn, error) {
	hosts, err := d.o.Lookup(ctx, d.address.Host)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("the name %s has no address", d.address.Host)
	for _, h := range hosts {
		var c net.Conn
		network, address := pgconn.NetworkAddress(h, d.address.Port)
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
