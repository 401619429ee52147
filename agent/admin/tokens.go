package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
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

// Tokens are who may do what. Who may change things may look at them too.
type Tokens struct {
	Viewers []Token // none, and no Admins either: everybody may look
	Admins  []Token // none: nobody may change anything
}

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
	name string // of the token
}

// who finds the caller by the token of a request. Every token is compared, each
// by its hash in constant time, so that the time tells nothing of them.
func (t Tokens) who(r *http.Request) caller {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = ""
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	c := caller{}
	if len(t.Viewers)+len(t.Admins) == 0 {
		c.role = viewer
	}
	for _, of := range []struct {
		role   role
		tokens []Token
	}{{viewer, t.Viewers}, {admin, t.Admins}} {
		for _, known := range of.tokens {
			if subtle.ConstantTimeCompare(sum[:], known.sum[:]) == 1 {
				c = caller{of.role, known.Name}
			}
		}
	}
	return c
}
