package xds

import (
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
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The files that a bootstrap names. Envoy takes a file when it is moved into place.
const (
	clustersFile  = "clusters.json"
	listenersFile = "listeners.json"
	endpointsPre  = "endpoints-"
)

// filesRetry is how long a failed write waits.
const filesRetry = 5 * time.Second

// files writes what is served into a folder, for Envoys that shall start while no
// agent runs. What is new comes endpoints, clusters, listeners; what goes, the
// other way round; so that nothing ever names what is not there.
type files struct {
	dir   string
	log   *slog.Logger
	ready chan struct{}

	mu   sync.Mutex          // guards sets
	sets map[string]*encoded // newest, by cluster

	// What follows belongs to the goroutine of run.
	written map[string]string // by file
	names   []string          // of the clusters that were written
}

func newFiles(dir string, log *slog.Logger) *files {
	return &files{dir: dir, log: log, ready: make(chan struct{}, 1), sets: make(map[string]*encoded), written: make(map[string]string)}
}

// put takes the newest of all clusters.
func (f *files) put(sets map[string]*encoded) {
	f.mu.Lock()
	f.sets = sets
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
			return
		case <-f.ready:
		case <-retry:
		}
		retry = nil
		if err := f.write(); err != nil {
			f.log.Error("files for Envoy were not written; Envoy keeps what it has", "folder", f.dir, "error", err, "again_in", filesRetry)
			retry = time.After(filesRetry)
		}
	}
}

// write brings the folder up to date.
func (f *files) write() error {
	f.mu.Lock()
	sets := f.sets
	f.mu.Unlock()
	var all [kinds][]*anypb.Any
	endpoints := make(map[string]string)
	for _, cluster := range slices.Sorted(maps.Keys(sets)) {
		for k, of := range sets[cluster] {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				if named(name) {
					continue // who reads files asks for nothing by name
				}
				r := of[name].wire.GetResource()
				switch kind(k) {
				case kindEndpoint:
					text, err := response(of[name].version, r)
					if err != nil {
						return err
					}
					endpoints[f.endpoints(name)] = text
				case kindCluster:
					c, err := f.fromFiles(r)
					if err != nil {
						return err
					}
					all[k] = append(all[k], c)
				default:
					all[k] = append(all[k], r)
				}
			}
		}
	}
	clusters, err := response("", all[kindCluster]...)
	if err != nil {
		return err
	}
	listeners, err := response("", all[kindListener]...)
	if err != nil {
		return err
	}
	var names []string
	for _, set := range sets {
		names = slices.AppendSeq(names, maps.Keys(set[kindCluster]))
	}
	goes := slices.ContainsFunc(f.names, func(n string) bool { return !slices.Contains(names, n) })
	if err := f.place(endpoints, clusters, listeners, goes); err != nil {
		return err
	}
	f.names = names // only now: what failed is done again in the same order
	return nil
}

// place moves what changed into place; goes: a cluster goes, and its listener first.
func (f *files) place(endpoints map[string]string, clusters, listeners string, goes bool) error {
	for _, path := range slices.Sorted(maps.Keys(endpoints)) {
		if err := f.replace(path, endpoints[path]); err != nil {
			return err
		}
	}
	order := []struct{ name, text string }{{clustersFile, clusters}, {listenersFile, listeners}}
	if goes {
		slices.Reverse(order)
	}
	for _, x := range order {
		if err := f.replace(filepath.Join(f.dir, x.name), x.text); err != nil {
			return err
		}
	}
	return f.sweep(endpoints)
}

// sweep removes files that no cluster names any more.
func (f *files) sweep(endpoints map[string]string) error {
	old, err := filepath.Glob(filepath.Join(f.dir, endpointsPre+"*.json"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, used := endpoints[path]; !used {
			delete(f.written, path)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// replace moves a file into place unless it is there already: each move makes
// Envoy read it.
func (f *files) replace(path, text string) error {
	if f.written[path] == text {
		return nil
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != text {
		if err := renameio.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	f.written[path] = text
	return nil
}

func (f *files) endpoints(name string) string {
	return filepath.Join(f.dir, endpointsPre+url.PathEscape(name)+".json")
}

// fromFiles is a cluster that has its endpoints from a file.
func (f *files) fromFiles(r *anypb.Any) (*anypb.Any, error) {
	c := new(clusterv3.Cluster)
	if err := proto.Unmarshal(r.GetValue(), c); err != nil {
		return nil, fmt.Errorf("decoding a cluster: %w", err)
	}
	c.EdsClusterConfig.EdsConfig = fromFile(f.endpoints(c.GetEdsClusterConfig().GetServiceName()))
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

// response is a file's content. The spaces that the encoder puts in at random are
// taken out again, since another text makes Envoy read the file.
func response(version string, all ...*anypb.Any) (string, error) {
	b, err := protojson.MarshalOptions{Multiline: true, Indent: " "}.Marshal(&discoveryv3.DiscoveryResponse{VersionInfo: version, Resources: all})
	if err != nil {
		return "", fmt.Errorf("writing JSON for Envoy: %w", err)
	}
	return strings.ReplaceAll(string(b), `":  `, `": `) + "\n", nil
}
