package drain

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
)

// Phase is how far a drain is.
type Phase string

// The phases. The last four are ends: nobody is ended in them.
const (
	Settling Phase = "settling" // balancers are being told; new sessions may still come
	Waiting  Phase = "waiting"  // until the deadline, or until nobody is left
	Ending   Phase = "ending"   // the deadline is over and the rest is being ended
	Done     Phase = "done"     // nobody is left
	Left     Phase = "left"     // it is over, and somebody is left
	Stopped  Phase = "stopped"  // the maintenance ended, or another drain took its place
	Failed   Phase = "failed"   // the server could not be asked, or was another one, for too long
)

// Over reports whether nothing more happens.
func (p Phase) Over() bool { return p == Done || p == Left || p == Stopped || p == Failed }

// Client is one session at a server.
type Client struct {
	PID int `json:"pid"`
	// StartedUS is when it began, in microseconds since 1970 by the server's clock.
	StartedUS   int64  `json:"started_us"`
	User        string `json:"user"`
	Application string `json:"application"`
	Client      string `json:"client"` // host:port; local for a UNIX socket
	State       string `json:"state"`  // as pg_stat_activity has it
	// Transaction: it is in one.
	Transaction bool `json:"transaction"`
	// AgeUS is that of the transaction, else how long it has been in its state, in
	// microseconds.
	AgeUS int64 `json:"age_us"`
}

// Age is AgeUS as a duration.
func (c Client) Age() time.Duration { return time.Duration(c.AgeUS) * time.Microsecond }

// is reports whether two are the same session.
func (c Client) is(o Client) bool { return c.PID == o.PID && c.StartedUS == o.StartedUS }

// idle: between two transactions, for long enough.
func (c Client) idle() bool { return c.State == "idle" && !c.Transaction && c.Age() >= idleFor }

func has(all []Client, c Client) bool { return slices.ContainsFunc(all, c.is) }

// EndedClient is a session that was ended, as it was seen before.
type EndedClient struct {
	Client
	At time.Time `json:"at"`
	// Why: "idle", or "deadline".
	Why string `json:"why"`
	// Told: the server confirmed that it was told to end. Without it the answer was
	// lost, and the session was gone afterwards.
	Told bool `json:"told"`
}

// Report is what became of a drain until now.
type Report struct {
	maintenance.Target
	ID    string `json:"id"`
	By    string `json:"by,omitempty"`
	Phase Phase  `json:"phase"`
	// Trouble is what keeps it from going on, or made it fail; empty: nothing.
	Trouble   string    `json:"trouble,omitempty"`
	Began     time.Time `json:"began"`
	Deadline  time.Time `json:"deadline"`
	EndIdle   bool      `json:"end_idle"`
	Terminate bool      `json:"terminate"`
	// EndingAt is when the rest began to be ended; zero: not yet.
	EndingAt time.Time `json:"ending_at,omitzero"`
	// LookedAt is when Left was seen; zero: not yet.
	LookedAt time.Time     `json:"looked_at,omitzero"`
	Left     []Client      `json:"left"`
	Ended    []EndedClient `json:"ended"`
}

// Transactions counts those left that are in one, with the age of the oldest.
func (r Report) Transactions() (n int, oldest time.Duration) {
	for _, c := range r.Left {
		if c.Transaction {
			n++
			oldest = max(oldest, c.Age())
		}
	}
	return n, oldest
}
