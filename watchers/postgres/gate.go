package postgres

import (
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	// loginAgain is how long no login is tried after one that was refused for its
	// credentials: each is a line in the server's log (field report FR-21).
	loginAgain = time.Minute
	// startingAgain spaces the attempts at a server that takes no session now.
	startingAgain = 2 * time.Second
	// refusedAgain spaces the attempts at a closed port in a burst.
	refusedAgain = 100 * time.Millisecond
	// oddAgain spaces the attempts at something that is no PostgreSQL, or refuses
	// for an unforeseen reason.
	oddAgain = 5 * time.Second
	// crowdedAgain spaces the attempts while lingerMost connections are unanswered:
	// the address may be well again long before they are given up, for example
	// when its host was exchanged.
	crowdedAgain = 3 * time.Second
	// confirmAfter separates the two attempts that prove a refusal: more than the
	// policy's refused_confirm of 50 ms, less than 100 ms.
	confirmAfter = 75 * time.Millisecond
)

// holdAfter is how long a failed attempt keeps the next one away, whoever asks.
func holdAfter(c topology.FailureClass) time.Duration {
	switch c {
	case topology.FailStarting, topology.FailSlots:
		return startingAgain
	case topology.FailProtocol:
		return oddAgain
	default:
		return 0
	}
}

// gate remembers why the last login was refused and keeps the next one back, of
// the kept session and of the fresh logins alike. The zero value is open.
type gate struct {
	mu       sync.Mutex
	class    topology.FailureClass
	text     string
	until    topology.Mono
	password string // the one that was refused; another one is tried at once
}

// note closes the gate after a refusal for credentials, database or TLS. Another
// failure leaves it as it is: whoever was refused before a restart of the
// server has the same credentials after it.
func (g *gate) note(now topology.Mono, c topology.FailureClass, password, text string) {
	switch c {
	case topology.FailAuth, topology.FailDatabase, topology.FailTLS:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.class, g.text, g.until, g.password = c, text, now.Add(loginAgain), password
	default:
	}
}

// shut returns why no login may be tried now; an empty class: it may.
func (g *gate) shut(now topology.Mono, password string) (topology.FailureClass, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now < g.until && g.password == password {
		return g.class, g.text
	}
	return "", ""
}
