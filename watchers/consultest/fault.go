package consultest

import "time"

// Fault changes the answer to one request. The zero value changes nothing.
type Fault struct {
	Hang       bool          // no byte until the client gives up
	Reset      bool          // the connection is reset after ResetAfter
	ResetAfter time.Duration // zero: at once
	Status     int           // answered with this status and Text
	Text       string

	NoBlock     bool          // answers at once, though nothing changed
	Delay       time.Duration // answers this much later
	Index       uint64        // X-Consul-Index; zero: the true one
	IndexZero   bool          // X-Consul-Index: 0
	NoHeaders   bool          // none of the X-Consul headers
	NoLeader    bool          // X-Consul-KnownLeader: false
	LastContact time.Duration // X-Consul-LastContact
	Filtered    bool          // the answer was filtered by ACLs
	DefaultDeny bool          // X-Consul-Default-ACL-Policy: deny
	Empty       bool          // nothing is found, whatever there is
	Pairs       []Pair        // what is found of the store; nil: what it holds
}

// Script sets what happens to each request from now on; nil: nothing. It is
// called once a request, possibly by several goroutines.
func (a *Agent) Script(f func(Request) Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script = f
}

// RequireToken refuses every request without this token; empty: none is needed.
func (a *Agent) RequireToken(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = token
}

// Hide leaves keys with these prefixes, and services of these names, out of every
// answer, as for a token that may not read them. No argument: nothing is hidden.
func (a *Agent) Hide(prefixes ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hidden = prefixes
	a.broadcast()
}

// Freeze stops the agent as SIGSTOP does: requests arrive and get no byte, and
// held queries stay held.
func (a *Agent) Freeze() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.halted == nil {
		a.halted = make(chan struct{})
	}
}

// Thaw lets a frozen agent go on.
func (a *Agent) Thaw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.halted != nil {
		close(a.halted)
		a.halted = nil
	}
}

// Stop refuses connections and resets held queries, as the end of the process does.
func (a *Agent) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.isDown {
		a.isDown = true
		close(a.down)
	}
}

// Start ends Stop; the store is as it was.
func (a *Agent) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.isDown {
		a.isDown = false
		a.down = make(chan struct{})
	}
}
