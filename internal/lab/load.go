package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// LoadOptions says how much is written. The zero value is one session that
// writes every 10 ms as the role "app".
type LoadOptions struct {
	// Interval is the time between two writes of a session; 0 means 10 ms.
	Interval time.Duration
	// Timeout is the limit for one connect or one write; 0 means 1 s.
	Timeout time.Duration
	// Sessions is how many sessions are held at the same time; 0 means 1.
	Sessions int
	// NewSession opens a session for each write and closes it afterwards.
	NewSession bool
	// ReadOnly reads instead of writing.
	ReadOnly bool
	// User and Password log in; an empty User means "app", without a password.
	User, Password string
	// Pooler keeps to what a PgBouncer in transaction mode takes: no prepared statements.
	Pooler bool
	// RootCert is a file of the certificates that the server's must be signed by, for
	// the address that is dialled (sslmode=verify-full); empty means no TLS.
	RootCert string
}

// Op is what a sample measured.
type Op string

// What a sample may be about.
const (
	Connect Op = "connect"
	Write   Op = "write"
	Read    Op = "read"
)

// Sample is one connect, write or read of a Load.
type Sample struct {
	Session  int           // which of the parallel sessions, from 0
	At       time.Time     // when it began
	Duration time.Duration // how long it took
	Op       Op
	Port     int   // of the server that the session reached; 0 if none
	ID       int64 // of the row that was written, also a promise: it must survive
	Err      error // nil if it succeeded
}

// End returns when the sample's operation was over.
func (s Sample) End() time.Time { return s.At.Add(s.Duration) }

// Load is traffic of applications through one address, for example HAProxy's
// port for writes. A session whose operation fails is opened anew at the next
// interval.
type Load struct {
	o    LoadOptions
	dsn  string
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	samples []Sample
}

// Load starts writing through addr, "host:port", until Stop or Close.
func (l *Lab) Load(addr string, o LoadOptions) *Load {
	if o.Interval <= 0 {
		o.Interval = 10 * time.Millisecond
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.Sessions <= 0 {
		o.Sessions = 1
	}
	if o.User == "" {
		o.User = AppUser
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &Load{o: o, dsn: dsn(addr, o.User, o.Password), end: cancel}
	if o.RootCert != "" {
		d.dsn = strings.Replace(d.dsn, "sslmode=disable", "sslmode=verify-full&sslrootcert="+url.QueryEscape(o.RootCert), 1)
	}
	if o.Pooler {
		d.dsn += "&default_query_exec_mode=simple_protocol"
	}
	l.onClose(func() error { d.Stop(); return nil })
	for i := range o.Sessions {
		d.work.Go(func() { d.session(ctx, i) })
	}
	return d
}

// Stop ends the load and returns all samples in the order of their beginning.
// It takes no longer than one timeout and may be called again.
func (d *Load) Stop() []Sample {
	d.end()
	d.work.Wait()
	return d.Samples()
}

// Samples returns what was measured until now, in the order of beginning.
func (d *Load) Samples() []Sample {
	d.mu.Lock()
	s := slices.Clone(d.samples)
	d.mu.Unlock()
	slices.SortStableFunc(s, func(a, b Sample) int { return a.At.Compare(b.At) })
	return s
}

// Wait returns when there is a sample for which ok holds, and that began after
// the call. The function must not call the Load. The text says what is waited
// for, in errors.
func (d *Load) Wait(ctx context.Context, what string, ok func(Sample) bool) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	from := time.Now()
	return poll(ctx, what, pollEvery, func() (bool, error) { return d.any(from, ok) })
}

// any reports whether ok holds for a sample that began at or after from.
func (d *Load) any(from time.Time, ok func(Sample) bool) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, s := range slices.Backward(d.samples) { // they are in the order of their ends
		if s.End().Before(from) {
			break
		}
		if s.At.Before(from) {
			continue
		}
		if n++; ok(s) {
			return true, nil
		}
	}
	return false, fmt.Errorf("%d samples since then", n)
}

// session is one client: it writes, and connects whenever it has no connection.
func (d *Load) session(ctx context.Context, id int) {
	var conn *pgx.Conn
	var port int
	drop := func() {
		if conn != nil {
			closeQuietly(conn)
			conn = nil
		}
	}
	defer drop()
	tick := time.NewTicker(d.o.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if conn == nil {
			conn, port = d.connect(ctx, id)
		}
		if conn != nil && (!d.operate(ctx, id, conn, port) || d.o.NewSession) {
			drop()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// connect opens a session and asks it which server it reached.
func (d *Load) connect(ctx context.Context, id int) (*pgx.Conn, int) {
	s := Sample{Session: id, Op: Connect, At: time.Now()}
	opctx, cancel := context.WithTimeout(ctx, d.o.Timeout)
	defer cancel()
	conn, err := connect(opctx, d.dsn)
	if err == nil {
		if err = conn.QueryRow(opctx, "SELECT inet_server_port()").Scan(&s.Port); err != nil {
			closeQuietly(conn)
			conn = nil
		}
	}
	d.record(ctx, s, err)
	return conn, s.Port
}

// operate writes or reads once and reports success.
func (d *Load) operate(ctx context.Context, id int, conn *pgx.Conn, port int) bool {
	s := Sample{Session: id, Op: Write, Port: port, At: time.Now()}
	opctx, cancel := context.WithTimeout(ctx, d.o.Timeout)
	defer cancel()
	q := "INSERT INTO writes DEFAULT VALUES RETURNING id"
	if d.o.ReadOnly {
		s.Op, q = Read, "SELECT coalesce(max(id), 0) FROM writes"
	}
	err := conn.QueryRow(opctx, q).Scan(&s.ID)
	d.record(ctx, s, err)
	return err == nil
}

// record keeps a sample, unless it failed because the load ends.
func (d *Load) record(ctx context.Context, s Sample, err error) {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Duration, s.Err = time.Since(s.At), err
	d.samples = append(d.samples, s)
}

// closeQuietly ends a session; a peer that does not answer cannot hold it up.
func closeQuietly(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx) // it is of no use any more
}
