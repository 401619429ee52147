package postgres

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// errPending is a question's error while nobody answers it.
var errPending = fmt.Errorf("no answer in time: %w", os.ErrDeadlineExceeded)

// kept is a session that is kept for one statement. A question without an
// answer stays open and is waited on: a new session would meet the same
// trouble, and hold one more backend of a server that has too few. It belongs to
// one goroutine.
type kept struct {
	door    *door
	sql     string
	args    [][]byte
	timeout time.Duration // of an answer
	// patience is after how long a session without an answer is given up for a new
	// one; zero: never.
	patience time.Duration

	wire    *wire      // nil: there is no session
	pending chan error // answer of the question that is open; nil: none is
	cancel  context.CancelFunc
	sentAt  topology.Clock // when the newest question was sent
}

// ask puts the question, over a new session if the old one was lost. The failure
// is that of a login, err that of the statement.
func (k *kept) ask(ctx context.Context) (f *topology.Failure, err error) {
	for again := k.wire != nil; ; again = false {
		if k.wire == nil {
			k.wire, f = k.door.login(ctx, k.door.o.ConnectTimeout)
			if f != nil {
				return f, nil
			}
		}
		err = k.put(ctx)
		if err == nil || k.pending != nil || k.wire == nil || !k.wire.over {
			return nil, err
		}
		k.end()
		if !again {
			return nil, err
		}
	}
}

// put sends the statement and waits for the answer. A late answer to the last
// one proves nothing of now, so it is asked again.
func (k *kept) put(ctx context.Context) error {
	late := k.pending != nil
	if !late {
		k.send()
	}
	err := k.await(ctx)
	if late && err == nil {
		k.send()
		err = k.await(ctx)
	}
	return err
}

func (k *kept) send() {
	ctx, cancel := context.WithCancel(context.Background())
	w, answer := k.wire, make(chan error, 1)
	k.pending, k.cancel, k.sentAt = answer, cancel, k.door.o.Now()
	go func() {
		_, err := w.query(ctx, k.sql, k.args)
		answer <- err
	}()
}

// await waits for the answer until its time is up.
func (k *kept) await(ctx context.Context) error {
	t := time.NewTimer(k.timeout)
	defer t.Stop()
	select {
	case err := <-k.pending:
		k.cancel()
		k.pending = nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
	}
	if k.patience > 0 && k.door.o.Now().Mono.Sub(k.sentAt.Mono) >= k.patience {
		k.end()
	}
	return errPending
}

// idle calls stirred when the server says something unasked. Nothing may be asked
// until stop has returned.
func (k *kept) idle(stirred func()) (stop func()) {
	if k.wire == nil || k.pending != nil {
		return func() {}
	}
	return k.wire.sock.idle(stirred)
}

// end ends the session, if there is one, also while a question is open.
func (k *kept) end() {
	if k.wire == nil {
		return
	}
	if k.pending != nil {
		k.wire.sock.giveUp()
		k.cancel()
		<-k.pending
		k.pending = nil
	}
	k.wire.hangUp()
	k.wire = nil
}
