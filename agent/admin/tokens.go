package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// minToken is the length of the shortest token that is taken: what fits here must
// not be guessed.
const minToken = 16

// Token is one token of a file.
type Token struct {
	Name string // for the audit; empty: none was given
	sum  [sha256.Size]byte
}

// ParseTokens reads a token file: a token a line, or a name and its token. Blank
// lines and those that begin with # do not count. Several tokens may be valid at
// once, so that each person has one's own and each can be replaced without a gap.
func ParseTokens(text []byte) ([]Token, error) {
	var all []Token
	for i, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) > 2 {
			return nil, fmt.Errorf("line %d is neither a token nor a name and a token", i+1)
		}
		token := words[len(words)-1]
		if len(token) < minToken {
			return nil, fmt.Errorf("the token in line %d has %d characters, at least %d are needed", i+1, len(token), minToken)
		}
		t := Token{sum: sha256.Sum256([]byte(token))}
		if len(words) == 2 {
			t.Name = words[0]
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no token in the file")
	}
	return all, nil
}

// Tokens are who may do what. Who may change things may look at them too. Without
// any of them everybody may look, and without an admin nobody may change anything.
type Tokens struct {
	Viewers, Admins []Token
	// ViewerNames and AdminNames are in certificates that clients show, as their
	// common name or a subject alternative name.
	ViewerNames, AdminNames []string
}

// open: everybody may look.
func (t Tokens) open() bool {
	return len(t.Viewers)+len(t.Admins)+len(t.ViewerNames)+len(t.AdminNames) == 0
}

// closed: nobody may change anything.
func (t Tokens) closed() bool { return len(t.Admins)+len(t.AdminNames) == 0 }

// role is what a caller may do.
type role uint8

// The roles, each with the rights of those before it.
const (
	nobody role = iota
	viewer
	admin
)

// caller is who asks.
type caller struct {
	role role
	name string // of the token, or in the certificate
	by   string // what showed it: byToken or byCertificate
}

// What shows who a caller is.
const (
	byToken       = "token"
	byCertificate = "certificate"
)

// who finds the caller by the token and the certificate of a request; the one that
// may do more counts.
func (t Tokens) who(r *http.Request, now time.Time) caller {
	c := t.byToken(r)
	if shown := t.byCertificate(r, now); shown.role > c.role {
		return shown
	}
	return c
}

// byCertificate finds the caller by a certificate that the listener has verified. A
// connection may outlive it: then it counts no more.
func (t Tokens) byCertificate(r *http.Request, now time.Time) caller {
	c := caller{by: byCertificate}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return c
	}
	leaf := r.TLS.VerifiedChains[0][0]
	if now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return c
	}
	for _, of := range []struct {
		role  role
		names []string
	}{{viewer, t.ViewerNames}, {admin, t.AdminNames}} {
		for _, name := range namesIn(leaf) {
			if slices.Contains(of.names, name) {
				c.role, c.name = of.role, name
			}
		}
	}
	return c
}

// namesIn are the names of a certificate's owner; empty ones are none.
func namesIn(c *x509.Certificate) []string {
	names := append([]string{c.Subject.CommonName}, c.DNSNames...)
	names = append(names, c.EmailAddresses...)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == "" })
}

// byToken finds the caller by the token of a request. Every token is compared, each
// by its hash in constant time, so that the time tells nothing of them.
func (t Tokens) byToken(r *http.Request) caller {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = ""
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	c := caller{by: byToken}
	if t.open() {
		c.role = viewer
	}
	for _, of := range []struct {
		role   role
		tokens []Token
	}{{viewer, t.Viewers}, {admin, t.Admins}} {
		for _, known := range of.tokens {
			if subtle.ConstantTimeCompare(sum[:], known.sum[:]) == 1 {
				c.role, c.name = of.role, known.Name
			}
		}
	}
	return c
}
