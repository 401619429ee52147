package xds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// list is a file that has everything of a kind. The text of each resource is kept, so
// that a change costs the encoding of what changed and a copy of the rest.
type list struct {
	path  string
	parts map[string]map[string]part // by cluster and name
	dirty bool                       // the file differs
	size  int                        // of the last text
}

// part is a resource in a list.
type part struct {
	version string // empty: as an earlier run wrote it
	text    string
}

func newList(path string) list { return list{path: path, parts: make(map[string]map[string]part)} }

// load takes what is in the file. What cannot be understood, Envoy cannot either: it is
// replaced.
func (l *list) load(log *slog.Logger) error {
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		l.dirty = true
		return nil
	}
	if err != nil {
		return err
	}
	var was struct{ Resources []json.RawMessage }
	if err := json.Unmarshal(b, &was); err != nil {
		log.Error("a file for Envoy cannot be read and is written anew; what it had of clusters of which nothing is known is lost", "file", l.path, "error", err)
	}
	for _, r := range was.Resources {
		var of struct{ Name string }
		text, err := indented(r, partIndent)
		if err = errors.Join(err, json.Unmarshal(r, &of)); err != nil {
			continue // it is no resource
		}
		cluster := clusterOf(of.Name)
		if l.parts[cluster] == nil {
			l.parts[cluster] = make(map[string]part)
		}
		l.parts[cluster][of.Name] = part{text: text}
	}
	l.dirty = !bytes.Equal(l.text(), b)
	return nil
}

// encode is the parts of one cluster; pack makes of a resource what the file has of it.
func (l *list) encode(cluster string, of map[string]*resource, pack func(*resource) (*anypb.Any, error)) (map[string]part, error) {
	next := make(map[string]part, len(of))
	for name, r := range of {
		if named(name) {
			continue // who reads files asks for nothing by name
		}
		p := l.parts[cluster][name]
		if p.version != r.version {
			m, err := pack(r)
			if err != nil {
				return nil, err
			}
			text, err := toJSON(m, partIndent)
			if err != nil {
				return nil, err
			}
			p = part{r.version, text}
		}
		next[name] = p
	}
	return next, nil
}

// put replaces the parts of a cluster, and reports whether one goes.
func (l *list) put(cluster string, next map[string]part) (goes bool) {
	old := l.parts[cluster]
	goes = lost(old, next)
	l.dirty = l.dirty || goes
	for name, p := range next {
		l.dirty = l.dirty || old[name].text != p.text
	}
	if l.parts[cluster] = next; len(next) == 0 {
		delete(l.parts, cluster)
	}
	return goes
}

// place moves the file into place, if it differs.
func (l *list) place() error {
	if !l.dirty {
		return nil
	}
	if err := renameio.WriteFile(l.path, l.text(), 0o644); err != nil {
		return err
	}
	l.dirty = false
	return nil
}

// partIndent is before every line of a part but its first.
const partIndent = "  "

// text is the whole file, as protojson would write it.
func (l *list) text() []byte {
	var b bytes.Buffer
	b.Grow(l.size + l.size/8)
	sep := "{\n \"resources\": [\n" + partIndent
	for _, cluster := range slices.Sorted(maps.Keys(l.parts)) {
		of := l.parts[cluster]
		for _, name := range slices.Sorted(maps.Keys(of)) {
			b.WriteString(sep)
			b.WriteString(of[name].text)
			sep = ",\n" + partIndent
		}
	}
	if b.Len() == 0 {
		return []byte("{}\n")
	}
	b.WriteString("\n ]\n}\n")
	l.size = b.Len()
	return b.Bytes()
}

// lost reports whether next lacks a name.
func lost[P any](old, next map[string]P) bool {
	for name := range old {
		if _, still := next[name]; !still {
			return true
		}
	}
	return false
}

// response is the content of a file with one resource.
func response(version string, r *anypb.Any) (string, error) {
	text, err := toJSON(&discoveryv3.DiscoveryResponse{VersionInfo: version, Resources: []*anypb.Any{r}}, "")
	return text + "\n", err
}

func toJSON(m proto.Message, prefix string) (string, error) {
	b, err := protojson.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("writing JSON for Envoy: %w", err)
	}
	return indented(b, prefix)
}

// indented is JSON with spaces of our own: protojson puts some in at random, and
// another text makes Envoy read the file.
func indented(b []byte, prefix string) (string, error) {
	var to bytes.Buffer
	err := json.Indent(&to, b, prefix, " ")
	return to.String(), err
}
