package pgtest

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// backend serves one connection.
type backend struct {
	s       *Server
	c       *end
	be      *pgproto3.Backend
	queries map[string]string // by statement name
	bound   string            // query of the portal
	told    map[string]string // ParameterStatus as the client knows it
}

func (s *Server) serve(c *end) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	b := &backend{
		s: s, c: c, be: pgproto3.NewBackend(c, c),
		queries: make(map[string]string), told: make(map[string]string),
	}
	if !b.startUp() {
		return
	}
	for {
		msg, err := b.be.Receive()
		if err != nil || !b.answer(msg) {
			return
		}
	}
}

// startUp takes a client through the login; false ends the connection.
func (b *backend) startUp() bool {
	for {
		msg, err := b.be.ReceiveStartupMessage()
		if err != nil {
			b.s.until(nil, func(st State) bool { return !st.HalfOpen })
			return false
		}
		if !b.s.until(nil, func(st State) bool { return !st.HangLogin }) {
			return false
		}
		switch msg.(type) {
		case *pgproto3.GSSEncRequest, *pgproto3.SSLRequest:
			b.s.count(func(c *Counts) { c.Alive++ })
			if _, err := b.c.Write([]byte{'N'}); err != nil {
				return false
			}
		case *pgproto3.CancelRequest:
			b.s.count(func(c *Counts) { c.Cancels++ })
			return false
		default:
			return b.login()
		}
	}
}

func (b *backend) login() bool {
	b.s.count(func(c *Counts) { c.Logins++ })
	state := b.s.now()
	if state.LoginError == "" && state.Password != "" && !b.password(state.Password) {
		state.LoginError = "28P01"
	}
	if state.LoginError != "" {
		b.be.Send(b.s.fatal(state.LoginError))
		_ = b.be.Flush() // the connection ends either way
		return false
	}
	b.be.Send(&pgproto3.AuthenticationOk{})
	b.tell("standard_conforming_strings", "on")
	b.tell("client_encoding", "UTF8")
	b.be.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	b.s.mu.Lock()
	b.s.counts.Sessions++
	b.s.conns[b.c] = true
	b.s.mu.Unlock()
	return b.ready()
}

// password asks for it in clear text, which needs no arithmetic.
func (b *backend) password(want string) bool {
	b.be.Send(&pgproto3.AuthenticationCleartextPassword{})
	if b.be.Flush() != nil || b.be.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return false
	}
	msg, err := b.be.Receive()
	got, ok := msg.(*pgproto3.PasswordMessage)
	return err == nil && ok && got.Password == want
}

// tell reports a parameter if the client knows another value.
func (b *backend) tell(name, value string) {
	if b.told[name] != value {
		b.told[name] = value
		b.be.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
}

// ready ends an answer. As in PostgreSQL 14 and newer, changed parameters are
// reported just before, and never while the session is idle.
func (b *backend) ready() bool {
	if st := b.s.now(); !st.Mute {
		inRecovery, readOnly := isYes(st.Probe.InRecovery), isYes(st.Probe.ReadOnly)
		b.tell("in_hot_standby", onOff(inRecovery))
		b.tell("default_transaction_read_only", onOff(readOnly && !inRecovery))
	}
	b.be.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return b.be.Flush() == nil
}

// answer answers one message; false ends the connection.
func (b *backend) answer(msg pgproto3.FrontendMessage) bool {
	switch m := msg.(type) {
	case *pgproto3.Query:
		return b.thawed() && b.empty()
	case *pgproto3.Parse:
		b.queries[m.Name] = m.Query
		b.be.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Describe:
		b.describe(m.ObjectType)
	case *pgproto3.Bind:
		b.bound = b.queries[m.PreparedStatement]
		b.be.Send(&pgproto3.BindComplete{})
	case *pgproto3.Execute:
		return b.thawed() && b.execute()
	case *pgproto3.Sync:
		return b.ready()
	case *pgproto3.Terminate:
		b.s.count(func(c *Counts) { c.Terminated++ })
		return false
	}
	return true
}

func (b *backend) thawed() bool {
	return b.s.until(nil, func(st State) bool { return !st.HangQuery })
}

func (b *backend) empty() bool {
	b.s.count(func(c *Counts) { c.Role++ })
	b.be.Send(&pgproto3.EmptyQueryResponse{})
	return b.ready()
}

func (b *backend) describe(object byte) {
	if object == 'S' {
		b.be.Send(&pgproto3.ParameterDescription{})
	} else if isWrite(b.bound) {
		b.be.Send(&pgproto3.NoData{})
		return
	}
	b.be.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("json_build_object"), DataTypeOID: 114, DataTypeSize: -1, TypeModifier: -1},
	}})
}

// execute answers what the client bound; false ends the connection.
func (b *backend) execute() bool {
	switch {
	case isWrite(b.bound):
		return b.write()
	case b.bound == "SELECT 1":
		b.s.count(func(c *Counts) { c.Ones++ })
		b.row([]byte("1"))
	case strings.Contains(b.bound, "has_function_privilege"):
		b.row(rightsRow)
	default:
		if sqlstate := b.s.queryError(); sqlstate != "" {
			b.be.Send(b.s.refusal(sqlstate))
			break
		}
		b.s.count(func(c *Counts) { c.Full++ })
		b.row(Row(b.s.now().Probe))
	}
	return true
}

func isWrite(query string) bool { return strings.HasPrefix(query, "INSERT INTO ") }

func (b *backend) write() bool {
	if !b.s.until(nil, func(st State) bool { return !st.HangWrite }) {
		return false
	}
	if sqlstate := b.s.now().WriteError; sqlstate != "" {
		b.be.Send(b.s.refusal(sqlstate))
		return true
	}
	b.s.count(func(c *Counts) { c.Writes++ })
	b.be.Send(&pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")})
	return true
}

func (b *backend) row(value []byte) {
	b.be.Send(&pgproto3.DataRow{Values: [][]byte{value}})
	b.be.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
}
