package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The files that a bootstrap names. Envoy takes a file when it is moved into place.
const (
	clustersFile  = "clusters.json"
	listenersFile = "listeners.json"
	endpointsPre  = "endpoints-"
	endpointsPost = ".json"
)

// writeRetry is how long a failed write waits, of files and of what stands.
const writeRetry = 5 * time.Second

// files writes what is served into a folder, for Envoys that shall start while no
// agent runs. Envoy takes all clusters from one file and all listeners from another,
// and deletes what such a file lacks; each assignment is a file of its own. Only what
// changed is encoded, and only files with a change in them are moved into place. Of a
// cluster of which nothing is known everything stays as it stood in the folder.
//
// What is new comes endpoints, clusters, listeners; what goes, the other way round; so
// that nothing ever names what is not there.
type files struct {
	dir   string
	log   *slog.Logger
	ready chan struct{}

	mu     sync.Mutex          // guards news and silent
	news   map[string]*encoded // newest of the clusters that changed since they were taken; nil: gone
	silent []string            // clusters that are configured and of which nothing is known

	// What follows belongs to the goroutine of run.
	loaded              bool // what stood in the folder before is known
	kept                []string
	clusters, listeners list
	endpoints           map[string]map[string]assignment // by cluster and name
	goes                bool                             // a cluster goes, and its listener first
	stray               bool                             // there may be files that no cluster names
	failed              map[string]bool                  // clusters whose newest could not be encoded
}

// assignment is a file of endpoints.
type assignment struct {
	version string
	text    string // what is to be placed; empty: that is done
}

func newFiles(dir string, log *slog.Logger) *files {
	return &files{
		dir: dir, log: log, ready: make(chan struct{}, 1), news: make(map[string]*encoded),
		clusters: newList(filepath.Join(dir, clustersFile)), listeners: newList(filepath.Join(dir, listenersFile)),
		endpoints: make(map[string]map[string]assignment), stray: true, failed: make(map[string]bool),
	}
}

// put takes the clusters that changed, nil for those that are gone, and says of which
// nothing is known. What was there before of any other cluster goes.
func (f *files) put(news map[string]*encoded, silent []string) {
	f.mu.Lock()
	maps.Copy(f.news, news)
	f.silent = silent
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is left, once.
func (f *files) run(ctx context.Context) {
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			select {
			case <-f.ready:
				f.attempt()
			default:
				if retry != nil {
					f.attempt()
				}
			}
			return
		case <-f.ready:
		case <-retry:
		}
		retry = nil
		if !f.attempt() {
			retry = time.After(writeRetry)
		}
	}
}

func (f *files) attempt() (done bool) {
	err := f.write()
	if err != nil {
		f.log.Error("files for Envoy were not written; Envoy keeps what it has", "folder", f.dir, "error", err, "again_in", writeRetry)
	}
	return err == nil
}

// write brings the folder up to date.
func (f *files) write() error {
	if err := f.load(); err != nil {
		return err
	}
	f.take()
	return f.place()
}

// load reads what an earlier run left, once.
func (f *files) load() error {
	if f.loaded {
		return nil
	}
	if _, err := os.Stat(f.dir); err != nil {
		return err // it may come later, with something in it
	}
	for _, l := range f.lists() {
		if err := l.load(f.log); err != nil {
			return err
		}
	}
	f.loaded = true
	return nil
}

func (f *files) lists() []*list { return []*list{&f.clusters, &f.listeners} }

// take encodes what changed.
func (f *files) take() {
	f.mu.Lock()
	news := f.news
	f.news, f.kept = make(map[string]*encoded), f.silent
	f.mu.Unlock()
	for cluster, set := range news {
		delete(f.failed, cluster)
		if set == nil {
			f.drop(cluster)
		} else if err := f.fold(cluster, set); err != nil {
			f.failed[cluster] = true
			f.log.Error("a decision cannot be written into files for Envoy; what they have of the cluster stays", "cluster", cluster, "error", err)
		}
	}
	for _, l := range f.lists() {
		for cluster := range l.parts {
			if f.endpoints[cluster] == nil && !f.stays(cluster) {
				f.drop(cluster) // of before the start
			}
		}
	}
}

// stays reports whether what an earlier run wrote of a cluster stays.
func (f *files) stays(cluster string) bool {
	return f.failed[cluster] || slices.Contains(f.kept, cluster)
}

func (f *files) drop(cluster string) {
	f.goes = f.clusters.put(cluster, nil) || f.goes
	f.listeners.put(cluster, nil)
	delete(f.endpoints, cluster)
	f.stray = true
}

// fold takes over the newest of one cluster, all of it or nothing.
func (f *files) fold(cluster string, set *encoded) error {
	clusters, err := f.clusters.encode(cluster, set[kindCluster], f.fromFiles)
	if err != nil {
		return err
	}
	listeners, err := f.listeners.encode(cluster, set[kindListener], asServed)
	if err != nil {
		return err
	}
	old, next := f.endpoints[cluster], make(map[string]assignment)
	for name, r := range set[kindEndpoint] {
		if named(name) {
			continue // who reads files asks for nothing by name
		}
		a := old[name]
		if a.version != r.version {
			text, err := response(r.version, r.wire.GetResource())
			if err != nil {
				return err
			}
			a = assignment{r.version, text}
		}
		next[name] = a
	}
	f.stray = f.stray || lost(old, next)
	f.endpoints[cluster] = next
	f.goes = f.clusters.put(cluster, clusters) || f.goes
	f.listeners.put(cluster, listeners)
	return nil
}

// place moves what changed into place. What failed is done again in the same order.
func (f *files) place() error {
	var failed error // the first one: a full disk fails thousands
	for _, of := range f.endpoints {
		for name, a := range of {
			if a.text == "" {
				continue
			}
			if err := f.replace(f.path(name), a.text); err != nil {
				failed = cmp.Or(failed, err)
				continue
			}
			a.text = ""
			of[name] = a
		}
	}
	if failed != nil {
		return failed
	}
	order := f.lists()
	if f.goes {
		slices.Reverse(order)
	}
	for _, l := range order {
		if err := l.place(); err != nil {
			return err
		}
	}
	f.goes = false
	return f.sweep()
}

// sweep removes files that no cluster names any more.
func (f *files) sweep() error {
	if !f.stray {
		return nil
	}
	all, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		name, ours := f.assigned(e.Name())
		cluster := clusterOf(name)
		if _, used := f.endpoints[cluster][name]; !ours || used || f.endpoints[cluster] == nil && f.stays(cluster) {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f.stray = false
	return nil
}

// replace moves a file into place unless it is there already, as after a start: each
// move makes Envoy read it.
func (f *files) replace(path, text string) error {
	if b, err := os.ReadFile(path); err == nil && string(b) == text {
		return nil
	}
	return renameio.WriteFile(path, []byte(text), 0o644)
}

// path is the file of an assignment.
func (f *files) path(name string) string {
	return filepath.Join(f.dir, endpointsPre+url.PathEscape(name)+endpointsPost)
}

// assigned is the name of the assignment that a file has, and false for other files.
func (f *files) assigned(file string) (name string, ours bool) {
	name, pre := strings.CutPrefix(file, endpointsPre)
	name, post := strings.CutSuffix(name, endpointsPost)
	name, err := url.PathUnescape(name)
	return name, pre && post && err == nil
}

// asServed is a resource as it goes over the wire.
func asServed(r *resource) (*anypb.Any, error) { return r.wire.GetResource(), nil }

// fromFiles is a cluster that has its endpoints from a file.
func (f *files) fromFiles(r *resource) (*anypb.Any, error) {
	c := new(clusterv3.Cluster)
	if err := proto.Unmarshal(r.wire.GetResource().GetValue(), c); err != nil {
		return nil, fmt.Errorf("decoding a cluster: %w", err)
	}
	c.EdsClusterConfig.EdsConfig = fromFile(f.path(c.GetEdsClusterConfig().GetServiceName()))
	packed := new(anypb.Any)
	return packed, anypb.MarshalFrom(packed, c, proto.MarshalOptions{Deterministic: true})
}

// fromFile says that something is in a file.
func fromFile(path string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
	}
}
