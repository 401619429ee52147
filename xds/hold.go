package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// Memory keeps which listeners stand at Envoys over a restart. Without it an
// upgrade that writes a listener differently would end every session.
type Memory interface {
	// Load returns what Save was given last, nil for nothing.
	Load() ([]byte, error)
	// Save keeps b. It may take its time.
	Save(b []byte) error
}

// standing is a listener as Envoys have it.
type standing struct {
	// Writer whom the listener was made for, nil for a read pool.
	Writer *string `json:"writer,omitempty"`
	// At is the writer's address then, "" for none and when an older pgsteer did not say.
	At string `json:"at,omitempty"`
	// Release is the operator's word when it was made, see Options.Release.
	Release string `json:"release"`
	Bytes   []byte `json:"bytes"`
	// Hosts are those that Envoys ask about in a cluster with health checks, and that
	// leave it.
	Hosts []resources.Host `json:"hosts,omitempty"`
	// CheckAt is where they ask, zero when an older pgsteer did not say.
	CheckAt topology.Address `json:"check_at,omitzero"`
}

// hold keeps listeners as they stand, and the clusters of pools with health checks,
// see [hold.keepChecked]. Every difference in one ends its sessions,
// so a listener changes when its writer does and its sessions end in any case, or
// when the operator gives another word of release. All of it belongs to the
// goroutine of the publisher, but for saving.
type hold struct {
	log     *slog.Logger
	memory  Memory
	release string
	unsaved chan struct{} // something stands that was not saved

	mu       sync.Mutex                     // guards the rest; stand is changed by the publisher alone
	stand    map[string]map[string]standing // by cluster and name
	withheld map[string]struct{}
}

// saveRest is the time between two writes of what stands.
const saveRest = time.Second

// ofCluster is what a cluster is called where listeners have their names. No name of
// a pool has a space.
const ofCluster = "cluster "

func newHold(m Memory, release string, log *slog.Logger) *hold {
	h := &hold{
		log: log, memory: m, release: release,
		stand: make(map[string]map[string]standing), unsaved: make(chan struct{}, 1), withheld: make(map[string]struct{}),
	}
	if m == nil {
		return h
	}
	stand := make(map[string]standing)
	b, err := m.Load()
	if err == nil && b != nil {
		err = json.Unmarshal(b, &stand)
	}
	if err == nil {
		for key, l := range stand {
			if len(l.Bytes) > 0 {
				h.set(key, l)
			}
		}
	} else {
		log.Error("which listeners stand at Envoys is not known; those that this version makes are served, and end sessions where they differ", "error", err)
	}
	return h
}

// at is what stands under a key.
func (h *hold) at(key string) (l standing, stands bool) {
	l, stands = h.stand[clusterOfKey(key)][key]
	return l, stands
}

func (h *hold) set(key string, l standing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cluster := clusterOfKey(key)
	if h.stand[cluster] == nil {
		h.stand[cluster] = make(map[string]standing)
	}
	h.stand[cluster][key] = l
}

func (h *hold) drop(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cluster := clusterOfKey(key)
	delete(h.stand[cluster], key)
	if len(h.stand[cluster]) == 0 {
		delete(h.stand, cluster)
	}
}

func clusterOfKey(key string) string { return clusterOf(strings.TrimPrefix(key, ofCluster)) }

// keep replaces listeners of a new set by those that stand, where these may not
// change yet. writers has the writers of write pools, and at tells where a node is.
func (h *hold) keep(next map[string]*resource, writers map[string]string, at func(node string) string) {
	changed := false
	for name, r := range next {
		if named(name) {
			continue // no client ends sessions for it
		}
		wanted := standing{Release: h.release, Bytes: r.wire.GetResource().GetValue()}
		if w, write := writers[name]; write {
			wanted.Writer, wanted.At = &w, at(w)
		}
		old, stands := h.at(name)
		free := !stands || old.Release != h.release || !sameWriter(old.Writer, wanted.Writer) && endsAnyway(old.Bytes)
		if free || bytes.Equal(old.Bytes, wanted.Bytes) {
			changed = changed || free || old.At != wanted.At
			h.set(name, wanted)
			h.note(name, false)
			continue
		}
		if old.At != wanted.At && sameWriter(old.Writer, wanted.Writer) {
			old.At, changed = wanted.At, true
			h.set(name, old)
		}
		next[name] = resourceOf(kindListener, name, old.Bytes)
		h.note(name, true)
	}
	if changed {
		h.save()
	}
}

// keepChecked puts clusters of a new set back as they stand, with the names of their
// endpoints and the address at which Envoy asks. Envoy ends the sessions of a node that
// is down by its check alone, and those from before a change of the cluster, or of that
// address, are asked about no more: they would outlive their node's role. So these
// change by another release; the cluster's TLS alone changes them at once, since nodes
// with renewed certificates could not be reached.
func (h *hold) keepChecked(set *resources.Set, leaving leaving, at topology.Address) error {
	changed := false
	for i, c := range set.Clusters {
		key := ofCluster + c.GetName()
		old, stands := h.at(key)
		here, checked := set.Checked[c.GetName()]
		if !checked {
			if stands {
				h.drop(key)
				h.note(key, false)
				changed = true
			}
			continue
		}
		hosts := slices.Concat(here, leaving.hosts(c.GetName()))
		changed = changed || !slices.Equal(old.Hosts, hosts)
		wanted, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
		if err != nil {
			return err
		}
		if old.CheckAt.IsZero() {
			old.CheckAt, changed = at, true
		}
		var before clusterv3.Cluster
		if stands && old.Release == h.release && (old.CheckAt != at || !bytes.Equal(old.Bytes, wanted)) {
			if err := proto.Unmarshal(old.Bytes, &before); err != nil {
				return fmt.Errorf("the cluster %s as it stands: %w", c.GetName(), err)
			}
			if proto.Equal(before.GetTransportSocket(), c.GetTransportSocket()) {
				set.Clusters[i] = &before
				set.Endpoints[i].Rename(before.GetEdsClusterConfig().GetServiceName())
				set.Endpoints[i].CheckAt(old.CheckAt)
				old.Hosts = hosts
				h.set(key, old)
				h.note(key, true)
				continue
			}
		}
		changed = changed || !stands || old.Release != h.release || !bytes.Equal(old.Bytes, wanted)
		h.set(key, standing{Release: h.release, Bytes: wanted, Hosts: hosts, CheckAt: at})
		h.note(key, false)
	}
	if changed {
		h.save()
	}
	return nil
}

// checked are the hosts that Envoys ask about, by pool, as they stand.
func (h *hold) checked(cluster string) map[string][]resources.Host {
	all := make(map[string][]resources.Host)
	for key, l := range h.stand[cluster] {
		if name, is := strings.CutPrefix(key, ofCluster); is {
			all[name] = l.Hosts
		}
	}
	return all
}

// forget drops what is not in a cluster's new set.
func (h *hold) forget(cluster string, next *encoded) {
	gone := false
	for _, key := range slices.Collect(maps.Keys(h.stand[cluster])) {
		name, checked := strings.CutPrefix(key, ofCluster)
		k := kindListener
		if checked {
			k = kindCluster
		}
		if next == nil || next[k][name] == nil {
			h.drop(key)
			h.note(key, false)
			gone = true
		}
	}
	if gone {
		h.save()
	}
}

// retain drops what stands of clusters that are not configured.
func (h *hold) retain(clusters []string) {
	for _, c := range slices.Collect(maps.Keys(h.stand)) {
		if !slices.Contains(clusters, c) {
			h.forget(c, nil)
		}
	}
}

// endsAnyway: the sessions of a listener end when its writer changes, by the name of its
// chain. Those of other modes go on.
func endsAnyway(listener []byte) bool {
	var l listenerv3.Listener
	return proto.Unmarshal(listener, &l) == nil && resources.EndsWithWriter(&l)
}

func sameWriter(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// note remembers whether a listener's change is held back, and logs news of it.
func (h *hold) note(name string, back bool) {
	h.mu.Lock()
	_, was := h.withheld[name]
	if back {
		h.withheld[name] = struct{}{}
	} else {
		delete(h.withheld, name)
	}
	h.mu.Unlock()
	if !back || was {
		return
	}
	if cluster, checked := strings.CutPrefix(name, ofCluster); checked {
		l, _ := h.at(name)
		h.log.Warn("a changed cluster is held back, since Envoy would ask nobody any more about the sessions that it has; it is served when envoy.release gets another text, and until then Envoy asks at this address",
			"cluster", cluster, "asks_at", l.CheckAt)
		return
	}
	h.log.Warn("a changed listener is held back, since it would end its sessions; it is served when envoy.release gets another text, and in a write pool when the writer changes", "listener", name)
}

// names are the listeners and the clusters whose change is held back.
func (h *hold) names() (listeners, clusters []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(h.withheld)) {
		if name, checked := strings.CutPrefix(key, ofCluster); checked {
			clusters = append(clusters, name)
		} else {
			listeners = append(listeners, key)
		}
	}
	return listeners, clusters
}

// save has what stands written, by run.
func (h *hold) save() {
	if h.memory == nil {
		return
	}
	select {
	case h.unsaved <- struct{}{}:
	default: // it is to be written already
	}
}

// run writes what stands until ctx ends, off the way of decisions: neither a disk that
// hangs nor the encoding of thousands of listeners must delay them.
func (h *hold) run(ctx context.Context) {
	var retry <-chan time.Time
	for {
		select {
		case <-h.unsaved:
		case <-retry:
		case <-ctx.Done():
			select {
			case <-h.unsaved:
				h.write()
			default:
				if retry != nil {
					h.write()
				}
			}
			return
		}
		retry = nil
		if !h.write() {
			retry = time.After(writeRetry)
		}
		select {
		case <-time.After(saveRest):
		case <-ctx.Done():
		}
	}
}

func (h *hold) write() (done bool) {
	all := make(map[string]standing)
	h.mu.Lock()
	for _, of := range h.stand {
		maps.Copy(all, of)
	}
	h.mu.Unlock()
	b, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = h.memory.Save(b)
	}
	if err != nil {
		h.log.Error("which listeners stand was not saved; a restart may serve them differently", "error", err, "again_in", writeRetry)
	}
	return err == nil
}
