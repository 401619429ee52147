package pgbouncer

import (
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a PgBouncer's console that a test steers. Of the commands it does what 1.18
// does: PAUSE of a paused database is no error, RESUME of another one is.
type fake struct {
	t    *testing.T
	addr string
	wg   sync.WaitGroup
	ln   net.Listener

	mu        sync.Mutex // guards everything below
	databases map[string]*Database
	// servers are its connections to servers: database, address, whether it leaves.
	servers  [][3]string
	opening  map[string]int // logins at servers that are under way, by database
	commands []string       // in order; those of one packet are joined with " + "
	logins   int
	cancels  int
	// before is called with each command; an error is the answer, errHang none.
	before func(command string) error
	// reload is what RELOAD does to the databases.
	reload func(map[string]*Database)
	conns  map[net.Conn]bool
}

var errHang = errors.New("no answer")

func newFake(t *testing.T, names ...string) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, addr: ln.Addr().String(), ln: ln, databases: make(map[string]*Database), conns: make(map[net.Conn]bool)}
	for _, n := range names {
		f.databases[n] = &Database{Name: n, Host: "10.0.0.1", Port: "5432"}
	}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		f.drop()
		f.wg.Wait()
	})
	return f
}

func (f *fake) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[c] = true
		f.mu.Unlock()
		f.wg.Go(func() { f.serve(c) })
	}
}

// drop ends all sessions, as a restart does.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.Close()
	}
}

// packets notes what came with one read: what a client sends in one packet over
// loopback is read as one.
type packets struct {
	net.Conn
	began bool
}

func (p *packets) Read(b []byte) (int, error) {
	p.began = true
	return p.Conn.Read(b)
}

func (f *fake) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := &packets{Conn: c}
	b := pgproto3.NewBackend(in, c)
	m, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if _, ok := m.(*pgproto3.CancelRequest); ok {
		f.mu.Lock()
		f.cancels++
		f.mu.Unlock()
		return
	}
	f.mu.Lock()
	f.logins++
	f.mu.Unlock()
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("key!")})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	for {
		in.began = false
		m, err := b.Receive()
		if err != nil {
			return
		}
		q, ok := m.(*pgproto3.Query)
		if !ok {
			return
		}
		if f.answer(b, q.String, !in.began) != nil || b.Flush() != nil {
			return
		}
	}
}

// answer does one command; more says that it came in one packet with the one before.
func (f *fake) answer(b *pgproto3.Backend, command string, more bool) error {
	f.mu.Lock()
	before := f.before
	if !strings.HasPrefix(command, "SHOW") {
		if n := len(f.commands); more && n > 0 {
			f.commands[n-1] += " + " + command
		} else {
			f.commands = append(f.commands, command)
		}
	}
	f.mu.Unlock()
	var err error
	if before != nil {
		err = before(command)
	}
	if err == nil {
		f.mu.Lock()
		err = f.do(b, command)
		f.mu.Unlock()
	}
	if errors.Is(err, errHang) {
		<-f.t.Context().Done()
		return io.EOF
	}
	if err != nil {
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "08P01", Message: err.Error()})
	} else {
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.Fields(command)[0])})
	}
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return nil
}

func (f *fake) do(b *pgproto3.Backend, command string) error {
	verb, name, _ := strings.Cut(command, " ")
	d := f.databases[strings.Trim(name, `"`)]
	switch {
	case command == "SHOW DATABASES":
		f.table(b)
	case command == "SHOW SERVERS":
		b.Send(&pgproto3.RowDescription{Fields: fields("database", "addr", "port", "close_needed")})
		for _, row := range f.servers {
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(row[0]), []byte(row[1]), []byte("5432"), []byte(row[2])}})
		}
	case command == "SHOW POOLS":
		b.Send(&pgproto3.RowDescription{Fields: fields("database", "sv_login")})
		for name, n := range f.opening {
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(name), []byte(strconv.Itoa(n))}})
		}
	case command == "SHOW CONFIG":
		b.Send(&pgproto3.RowDescription{Fields: fields("key", "value")})
		b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte("server_login_retry"), []byte("1")}})
	case command == "RELOAD":
		if f.reload != nil {
			f.reload(f.databases)
		}
	case d == nil:
		return errors.New("no such database: " + name)
	case verb == "PAUSE":
		d.Paused = true
	case verb == "RESUME" && !d.Paused:
		return errors.New("database " + d.Name + " is not paused")
	case verb == "RESUME":
		d.Paused = false
	case verb == "DISABLE" || verb == "ENABLE":
		d.Disabled = verb == "DISABLE"
	case verb == "KILL":
		d.Paused = true
	case verb != "RECONNECT":
		return errors.New("invalid command")
	}
	return nil
}

func fields(names ...string) (all []pgproto3.FieldDescription) {
	for _, n := range names {
		all = append(all, pgproto3.FieldDescription{Name: []byte(n), DataTypeOID: 25})
	}
	return all
}

func (f *fake) table(b *pgproto3.Backend) {
	bit := map[bool]string{false: "0", true: "1"}
	b.Send(&pgproto3.RowDescription{Fields: fields("name", "host", "port", "paused", "disabled")})
	for _, d := range f.databases {
		b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(d.Name), []byte(d.Host), []byte(d.Port), []byte(bit[d.Paused]), []byte(bit[d.Disabled])}})
	}
}

// set changes the fake under its lock.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// paused are the databases that are paused, sorted.
func (f *fake) paused() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.databases {
		if d.Paused {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

// sent are the commands until now, without those that only look.
func (f *fake) sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands)
}
