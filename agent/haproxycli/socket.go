package haproxycli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// maxAnswer bounds what is read of one exchange. The longest answer is that of
// "show sess", about 350 bytes a session.
const maxAnswer = 64 << 20

// Dialer opens a socket.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Socket is where one process of HAProxy takes commands.
type Socket struct {
	Network, Address string // "unix" and a path, or "tcp" and host:port
	// Timeout bounds one exchange. Zero: the context alone does.
	Timeout time.Duration
	// Dial; nil: the operating system's.
	Dial Dialer
}

// Parse returns the socket at an absolute path, or at host:port on loopback.
// Others are refused: who may talk to HAProxy's socket may do everything, and
// it asks for no password.
func Parse(s string) (Socket, error) {
	if strings.HasPrefix(s, "/") {
		return Socket{Network: "unix", Address: s}, nil
	}
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return Socket{}, fmt.Errorf("HAProxy socket %q is neither an absolute path nor host:port", s)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return Socket{}, fmt.Errorf("HAProxy socket %q is not on loopback", s)
	}
	return Socket{Network: "tcp", Address: s}, nil
}

// NotListening says that nobody takes commands at a socket.
type NotListening struct{ Err error }

func (e *NotListening) Error() string { return e.Err.Error() }
func (e *NotListening) Unwrap() error { return e.Err }

// Lines sends one line of commands on a connection of its own and calls each for
// every line of the answer, without its end. Without an interactive prompt HAProxy
// closes after its answer, so the answer ends where the stream does.
func (s Socket) Lines(ctx context.Context, line string, each func(string)) error {
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Timeout)
		defer cancel()
	}
	dial := s.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c, err := dial(ctx, s.Network, s.Address)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return s.failed("reach HAProxy for", line, err) // it may be there and hang
	}
	if err != nil {
		return &NotListening{err}
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return s.failed("send", line, err)
	}
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // the master of 2.6 keeps the connection open otherwise
	}
	in := bufio.NewReader(&io.LimitedReader{R: c, N: maxAnswer})
	for read := 0; ; {
		part, err := in.ReadString('\n')
		switch read += len(part); {
		case err == nil:
			each(strings.TrimRight(part, "\r\n"))
			continue
		case read >= maxAnswer:
			err = fmt.Errorf("it has more than %d bytes", maxAnswer)
		case errors.Is(err, io.EOF) && part == "":
			return nil
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF // half a line may name the wrong server
		}
		return s.failed("read the answer to", line, err)
	}
}

// failed names what was tried; a line of many commands is told by its beginning.
func (s Socket) failed(doing, line string, err error) error {
	const most = 60
	if len(line) > most {
		line = line[:most] + "…"
	}
	return fmt.Errorf("%s %q at %s: %w", doing, line, s.Address, err)
}

// Ask returns the answer to one command, without the empty line at its end.
func (s Socket) Ask(ctx context.Context, command string) (string, error) {
	var lines []string
	err := s.Lines(ctx, command, func(l string) { lines = append(lines, l) })
	if err != nil {
		return "", err
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n"), nil
}

// Answers sends commands in one line and returns an answer for each, "" for plain
// success. It is for commands whose answers end with an empty line; those of "add
// server" and "del server" do not always and need Ask.
func (s Socket) Answers(ctx context.Context, commands []string) ([]string, error) {
	var answers, lines []string
	err := s.Lines(ctx, strings.Join(commands, ";"), func(l string) {
		if l != "" {
			lines = append(lines, l)
			return
		}
		answers, lines = append(answers, strings.Join(lines, "\n")), nil
	})
	if err != nil {
		return nil, err
	}
	if len(answers) != len(commands) {
		return nil, fmt.Errorf("%d answers to %d commands at %s, so it is not known which were carried out", len(answers), len(commands), s.Address)
	}
	return answers, nil
}
