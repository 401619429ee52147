// Package haproxycfg reads the servers out of a configuration of HAProxy and says
// how two configurations differ, so that a running HAProxy can be brought from one
// to the other without a reload when nothing but servers has changed.
//
// Guarantees: it is pure; whatever it does not understand counts as a difference,
// so that the answer in doubt is a reload.
package haproxycfg

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Ref names a server.
type Ref struct{ Backend, Server string }

func (r Ref) String() string { return r.Backend + "/" + r.Server }

// Compare orders by backend, then by server.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Backend, o.Backend), strings.Compare(r.Server, o.Server))
}

// Server is a server at a literal address.
type Server struct {
	Address netip.AddrPort
	// Words are its settings, those of every default-server above it first: servers
	// that are added at runtime do not take these by themselves.
	Words []string
}

// AgentSend returns what the agent check of a server sends, and whether it sends
// anything.
func (s Server) AgentSend() (string, bool) {
	i := s.sendAt()
	if i < 0 {
		return "", false
	}
	return s.Words[i], true
}

// sendAt is where the last word of agent-send stands, which counts; -1: nowhere.
func (s Server) sendAt() int {
	for i := len(s.Words) - 1; i > 0; i-- {
		if s.Words[i-1] == "agent-send" {
			return i
		}
	}
	return -1
}

// SameSettings reports whether two servers differ in nothing but their address. With
// it goes what their agent checks send, which may name the address.
func (s Server) SameSettings(o Server) bool {
	if i := s.sendAt(); s.Address != o.Address && i >= 0 && i == o.sendAt() {
		return slices.Equal(slices.Delete(slices.Clone(s.Words), i, i+1), slices.Delete(slices.Clone(o.Words), i, i+1))
	}
	return slices.Equal(s.Words, o.Words)
}

// File is what a configuration says.
type File struct {
	Servers map[Ref]Server
	// Others are servers whose address is no literal IP with a port. They may not
	// differ.
	Others map[Ref]bool
	rest   []string // every line but those of Servers
}

// Backends are those that have, or may have, servers.
func (f File) Backends() map[string]bool {
	out := make(map[string]bool)
	for r := range f.Servers {
		out[r.Backend] = true
	}
	for r := range f.Others {
		out[r.Backend] = true
	}
	return out
}

// Parse reads a configuration. It is an error when a line that servers depend on
// is not understood.
func Parse(text []byte) (File, error) {
	p := parser{File: File{Servers: make(map[Ref]Server), Others: make(map[Ref]bool)}}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := p.line(strings.TrimRight(line, "\r\n")); err != nil {
			return File{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return p.File, nil
}

// sections are the keywords that begin one.
var sections = map[string]bool{
	"global": true, "defaults": true, "frontend": true, "backend": true, "listen": true, "peers": true, "resolvers": true,
	"userlist": true, "program": true, "ring": true, "mailers": true, "cache": true, "http-errors": true, "fcgi-app": true,
	"log-forward": true, "crt-store": true, "traces": true, "acme": true, "log-profile": true,
}

// parser reads line by line.
type parser struct {
	File
	backend  string   // "" outside backends
	inherit  bool     // a defaults section was seen, else defaults stand in another file
	defaults []string // the words of default-server in the last defaults section
	own      []string // those that hold for the next server of the section
	section  string
}

func (p *parser) line(line string) error {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		p.rest = append(p.rest, line)
		return nil
	}
	switch keyword := fields[0]; {
	case strings.HasPrefix(keyword, "."):
		return fmt.Errorf("%s makes lines conditional", keyword)
	case keyword == "server-template":
		return fmt.Errorf("%s is not known here", keyword)
	case sections[keyword]:
		p.begin(fields)
	case keyword == "default-server":
		words, err := words(line)
		if err != nil {
			return err
		}
		if p.section == "defaults" {
			p.defaults = append(p.defaults, words[1:]...)
		}
		p.own = append(p.own, words[1:]...)
	case keyword == "server" && p.backend != "":
		return p.server(line)
	}
	p.rest = append(p.rest, line)
	return nil
}

// begin starts a section.
func (p *parser) begin(fields []string) {
	p.section, p.backend, p.own = fields[0], "", nil
	switch p.section {
	case "defaults":
		p.inherit, p.defaults = true, nil
	case "backend", "listen":
		if len(fields) == 2 && p.inherit { // others name their defaults: "from NAME"
			p.backend, p.own = fields[1], slices.Clone(p.defaults)
		}
	}
}

func (p *parser) server(line string) error {
	words, err := words(line)
	if err != nil {
		return err
	}
	if len(words) < 3 {
		return errors.New("a server without an address")
	}
	ref := Ref{p.backend, words[1]}
	if _, twice := p.Servers[ref]; twice || p.Others[ref] {
		return fmt.Errorf("server %s is there twice", ref)
	}
	at, _ := netip.ParseAddrPort(words[2]) // else it is a name
	if at.Port() == 0 || at.Addr().IsUnspecified() || at.Addr().Zone() != "" {
		p.Others[ref] = true
		p.rest = append(p.rest, line)
		return nil
	}
	p.Servers[ref] = Server{Address: at, Words: slices.Concat(p.own, words[3:])}
	return nil
}

// Difference is what leads from one configuration to another.
type Difference struct {
	Remove    map[Ref]Server
	Move, Add map[Ref]Server // as they shall be
}

// InOrder returns the names of servers, sorted.
func InOrder(servers map[Ref]Server) []Ref {
	return slices.SortedFunc(maps.Keys(servers), Ref.Compare)
}

// Compare returns the difference of two configurations. It is an error when more
// than servers and their addresses differ.
func Compare(before, after File) (Difference, error) {
	d := Difference{Remove: make(map[Ref]Server), Move: make(map[Ref]Server), Add: make(map[Ref]Server)}
	if !slices.Equal(before.rest, after.rest) {
		return d, errors.New("more than servers at literal addresses has changed")
	}
	for ref, now := range after.Servers {
		was, there := before.Servers[ref]
		switch {
		case !there:
			d.Add[ref] = now
		case !was.SameSettings(now):
			return d, fmt.Errorf("the settings of server %s have changed", ref)
		case was.Address != now.Address:
			d.Move[ref] = now
		}
	}
	for ref, was := range before.Servers {
		if _, there := after.Servers[ref]; !there {
			d.Remove[ref] = was
		}
	}
	return d, nil
}
