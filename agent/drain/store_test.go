package drain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
)

// shelf is a store that agents share; the cable of one of them can be cut.
type shelf struct {
	mu   sync.Mutex // guards everything below
	text []byte
}

// cable is how one agent reaches the shelf.
type cable struct {
	*shelf
	cut atomic.Bool
}

func (c *cable) String() string { return "the shelf" }

func (c *cable) Change(_ context.Context, edit func([]byte) ([]byte, error)) error {
	if c.cut.Load() {
		return errors.New("no route to it")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := edit(c.text)
	if err == nil && next != nil {
		c.text = next
	}
	return err
}

// stoppedElsewhere: an agent that cannot read the store which all share ends nobody,
// since another one may have answered that nobody is ended any more; it goes on when
// the store is back and says so, and not when it says otherwise. What it was not told
// yet it reads before it ends anybody.
func stoppedElsewhere(r *rig) {
	here, there := &cable{shelf: new(shelf)}, new(cable)
	there.shelf = here.shelf
	r.book.Share(here)
	twin := maintenance.Open(maintenance.Options{Path: filepath.Join(r.dir, "twin.json"), Read: os.ReadFile, Now: r.now, Changed: func() {}})
	twin.Share(there)
	c := r.client("n2", "app", "first")
	r.exec(c, "BEGIN")
	r.begin(time.Second, maintenance.Sessions{EndIdle: true, Terminate: true})
	here.cut.Store(true)
	r.until("the trouble", func(rep Report) bool { return strings.Contains(rep.Trouble, "no route to it; nobody is ended") })
	r.ahead.Add(int64(endFor + time.Second)) // longer than the rest is being ended
	r.Wake()
	r.Settle(n2)
	if rep := r.report(); rep.Phase != Waiting || len(rep.Ended) != 0 || r.state(c) != "" {
		r.t.Errorf("without the store it sees %q: %+v", r.state(c), rep)
	}
	if text, err := os.ReadFile(filepath.Join(r.dir, "drains.json")); err != nil || strings.Contains(string(text), `"doomed"`) {
		r.t.Errorf("who is not told to end stands in the file: %v\n%s", err, text)
	}
	here.cut.Store(false)
	r.Wake()
	if rep := r.over(); rep.Phase != Done || endedNames(rep)["first"] != whyDeadline {
		r.t.Errorf("with the store it is %+v", rep)
	}

	c = r.client("n2", "app", "second")
	r.exec(c, "BEGIN")
	r.begin(3*time.Second, maintenance.Sessions{Terminate: true})
	r.until("a look", func(rep Report) bool { return names(rep.Left) == "second" })
	err := twin.Change(r.t.Context(), n2, func(set maintenance.Set) (maintenance.Set, bool) {
		set, _, changed := set.End(n2, "", r.now())
		return set, changed
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if rep := r.over(); rep.Phase != Stopped || len(rep.Ended) != 0 || r.state(c) != "" {
		r.t.Errorf("after a stop at another agent it sees %q: %+v", r.state(c), rep)
	}
}
