package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// KeyOptions describe one key of the store. All but Logger are required.
type KeyOptions struct {
	Client *Client
	Key    string
	// Deliver gets the key's value when it changes, and failures; see WatchOptions.
	Deliver func(Result[string])
	Now     topology.Ticker
	Logger  *slog.Logger // nil discards
}

// Key is one key that is watched, and that is changed by check-and-set.
type Key struct {
	o     KeyOptions
	watch *Watch[string]
}

// keyEvery is the time between questions about a key: there is one key, and a
// change of it must not wait for a second that other changes have used up.
const keyEvery = 200 * time.Millisecond

// NewKey prepares a key; it asks nothing yet.
func NewKey(o KeyOptions) *Key {
	return &Key{o: o, watch: NewWatch(WatchOptions[string]{
		Client: o.Client, What: "key " + o.Key, Every: keyEvery, Now: o.Now, Logger: o.Logger, Deliver: o.Deliver,
		Query: func(_ context.Context, q *api.QueryOptions) (string, *api.QueryMeta, error) {
			pair, meta, err := o.Client.KV().Get(o.Key, q)
			if pair == nil {
				return "", meta, err
			}
			return string(pair.Value), meta, err
		},
		Equal: func(a, b string) bool { return a == b },
		Empty: func(s string) bool { return s == "" },
	})}
}

// String names the key for people.
func (k *Key) String() string { return "key " + k.o.Key + " of " + k.o.Client.who() }

// Run watches until ctx ends.
func (k *Key) Run(ctx context.Context) { k.watch.Run(ctx) }

// changeTries bounds how often a change is tried anew because others changed the
// key at the same moment.
const changeTries = 10

// Change replaces the value by what edit makes of the newest one, empty for a
// key that is not there. If somebody else changes it meanwhile, edit is asked
// again. A nil result changes nothing. An error that comes after the question was
// put may leave open whether the change was made; the watch tells.
func (k *Key) Change(ctx context.Context, edit func(old []byte) ([]byte, error)) error {
	for range changeTries {
		q, err := k.o.Client.Options(ctx, Consistent)
		if err != nil {
			return err
		}
		pair, _, err := k.o.Client.KV().Get(k.o.Key, q)
		if err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		if pair == nil {
			pair = &api.KVPair{Key: k.o.Key} // index 0: only if it is still not there
		}
		value, err := edit(pair.Value)
		if err != nil || value == nil {
			return err
		}
		pair.Value = value
		w := (&api.WriteOptions{Datacenter: q.Datacenter, Token: q.Token}).WithContext(ctx)
		done, _, err := k.o.Client.KV().CAS(pair, w)
		if err != nil {
			return fmt.Errorf("write it: %w", err)
		}
		if done {
			return nil
		}
	}
	return errors.New("others change it all the time")
}
