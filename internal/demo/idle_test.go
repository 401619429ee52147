package demo

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// idlers are sessions that do nothing, as pools have them. Nobody but the server or
// what stands between ends one, so that its end tells when it was cut; a client that
// waits for an answer would give up by itself.
type idlers struct {
	dsn  string
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	ends []idleEnd
}

// idleEnd is the life of one that ended.
type idleEnd struct {
	port        int
	began, over time.Time
}

// comeBack is how often one that has no session tries: later than the clients that are
// measured, which have a small machine to themselves then.
const comeBack = 250 * time.Millisecond

func newIdlers(addr string, sessions int) *idlers {
	ctx, stop := context.WithCancel(context.Background())
	i := &idlers{dsn: "postgres://" + lab.AppUser + "@" + addr + "/postgres?sslmode=disable", stop: stop}
	for range sessions {
		i.done.Go(func() {
			for tick := time.NewTicker(comeBack); ctx.Err() == nil; {
				i.idle(ctx)
				select {
				case <-ctx.Done():
					tick.Stop()
				case <-tick.C:
				}
			}
		})
	}
	return i
}

// idle opens a session and waits for its end.
func (i *idlers) idle(ctx context.Context) {
	login, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := pgx.Connect(login, i.dsn)
	if err != nil {
		return
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = conn.Close(bye)
	}()
	e := idleEnd{began: time.Now()}
	if err := conn.QueryRow(login, "SELECT inet_server_port()").Scan(&e.port); err != nil {
		return
	}
	if _, err := conn.WaitForNotification(ctx); ctx.Err() != nil || err == nil {
		return
	}
	e.over = time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ends = append(i.ends, e)
}

// end stops all of them.
func (i *idlers) end() {
	i.stop()
	i.done.Wait()
}

// last is when the last of those that were on a server before a moment ended after
// it, and how many these were.
func (i *idlers) last(port int, before time.Time) (last time.Time, n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.ends {
		if e.port == port && e.began.Before(before) && e.over.After(before) {
			n++
			if e.over.After(last) {
				last = e.over
			}
		}
	}
	return last, n
}
