package refusal

import (
	"bufio"
	"crypto/tls"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgsteer/pgsteer/agent/accept"
)

// refuse hears a client until it wants a session, and tells it why there is none.
func (s *Server) refuse(c net.Conn) {
	// Deadlines of sockets are moments of the wall clock by their API.
	c.SetDeadline(time.Now().Add(s.o.Timeout))
	end := s.hear(c)
	if end == nil {
		return
	}
	accept.Linger(end)
}

// negotiations is how often a client may ask for something before its session:
// GSSAPI, then TLS, each once.
const negotiations = 2

// hear returns the connection on which the client was told, nil when it was not.
func (s *Server) hear(c net.Conn) net.Conn {
	c, err := s.direct(c)
	if err != nil {
		s.counters.Unheard.Add(1)
		return nil
	}
	_, secure := c.(*tls.Conn)
	b := pgproto3.NewBackend(c, c)
	for range negotiations + 1 {
		first, err := b.ReceiveStartupMessage()
		if err != nil {
			break
		}
		switch first.(type) {
		case *pgproto3.CancelRequest:
			s.counters.Cancels.Add(1)
			return nil
		case *pgproto3.StartupMessage:
			return s.tell(c, b)
		case *pgproto3.SSLRequest:
			if s.o.TLS == nil || secure {
				_, err = c.Write([]byte{'N'})
				break
			}
			if _, err = c.Write([]byte{'S'}); err == nil {
				c, secure = tls.Server(c, s.o.TLS), true
				b = pgproto3.NewBackend(c, c)
			}
		default: // GSSAPI
			_, err = c.Write([]byte{'N'})
		}
		if err != nil {
			break
		}
	}
	s.counters.Unheard.Add(1)
	return nil
}

// tell sends the word of now.
func (s *Server) tell(c net.Conn, b *pgproto3.Backend) net.Conn {
	w := s.word()
	if w.Code == adminShutdown {
		s.counters.Maintenance.Add(1)
	} else {
		s.counters.Unavailable.Add(1)
	}
	b.Send(w)
	if b.Flush() != nil {
		return nil
	}
	return c
}

// handshake is how a TLS record of a handshake begins (RFC 8446, 5.1). A length of
// that size begins no message of PostgreSQL's.
const handshake = 0x16

// direct begins TLS with a client that does, as libpq 17 can (sslnegotiation=direct).
func (s *Server) direct(c net.Conn) (net.Conn, error) {
	p := &peeked{Conn: c, r: bufio.NewReader(c)}
	first, err := p.r.Peek(1)
	switch {
	case err != nil:
		return nil, err
	case first[0] == handshake && s.o.TLS != nil:
		return tls.Server(p, s.o.TLS), nil
	}
	return p, nil
}

// peeked is a connection of which a byte was looked at.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// CloseWrite ends our half of the connection where that is possible.
func (p *peeked) CloseWrite() error {
	if h, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return p.Close()
}
