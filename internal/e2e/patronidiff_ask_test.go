package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// reply is what a server said to one request, byte for byte.
type reply struct {
	status int    // 0: no answer; -1: an answer without a status line
	head   string // with the status line
	body   []byte
}

func (r reply) String() string {
	switch r.status {
	case 0:
		return "none"
	case -1:
		return "bare"
	}
	return strconv.Itoa(r.status)
}

// reason is what pgsteer gives as one.
func (r reply) reason() string {
	_, text, _ := strings.Cut(r.head, "X-Pgsteer-Reason: ")
	text, _, _ = strings.Cut(text, "\r")
	return text
}

// json is the body as an object, nil if it is none.
func (r reply) json() (m map[string]any) {
	if json.Unmarshal(r.body, &m) != nil {
		return nil
	}
	return m
}

// tell sends bytes on a connection of its own and reads until the server closes
// it, which has to be soon: whoever keeps connections is asked to close this one.
func tell(addr, raw string, patience time.Duration) reply {
	return question{raw: raw}.putWithin(addr, "", patience)
}

// put asks a server with the question's manners.
func (q question) put(addr, target string) reply { return q.putWithin(addr, target, 4*time.Second) }

func (q question) putWithin(addr, target string, patience time.Duration) reply {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return reply{}
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if q.tls != nil {
		secure := q.tls.Clone()
		secure.ServerName = "127.0.0.1"
		c = tls.Client(c, secure)
	}
	if send := manners[q.manner]; send != nil {
		return send(c, q.request(target))
	}
	if _, err := io.WriteString(c, q.request(target)); err != nil {
		return reply{}
	}
	return read(c)
}

// read reads until the server closes the connection. What comes before an error counts.
func read(c net.Conn) reply {
	b, _ := io.ReadAll(io.LimitReader(c, 1<<20))
	return parseReply(b)
}

func parseReply(b []byte) reply {
	if len(b) == 0 {
		return reply{}
	}
	head, body, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	r := reply{status: -1, head: string(head), body: body}
	version, rest, _ := strings.Cut(r.head, " ")
	if code, _, _ := strings.Cut(rest, " "); strings.HasPrefix(version, "HTTP/1.") {
		code, _, _ = strings.Cut(code, "\r")
		if n, err := strconv.Atoi(code); err == nil {
			r.status = n
		}
	}
	return r
}

// plain is a request as most checkers send it.
func plain(method, target string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", method, target)
}
