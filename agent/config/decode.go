package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// decoder fills values that already hold their defaults from YAML nodes. It
// walks nodes itself instead of letting the library decode, for three reasons:
// a map's elements get their defaults before they are decoded, maps keep the
// file's order, and every value's position outlives decoding, so that checks of
// sense can point at it too.
type decoder struct {
	*collector
	root   *Config
	folder string // relative paths are relative to it
	open   bool   // files that are named must be readable

	marks map[path]mark // of every value that is written
	// unsound holds the paths with a fault of form at or below them, so that no second
	// fault is reported that only follows from the first; faulty those at it alone.
	unsound, faulty map[path]bool
	// opaque holds the paths whose whole content could not be read.
	opaque map[path]bool
	budget int
	// belongs says where a key stands that is unknown where it is written; nil
	// for files other than the configuration.
	belongs func(key string) string
}

// maxNodes bounds the work on a text whose anchors multiply it.
const maxNodes = 1_000_000

func newDecoder(file string, text []byte) *decoder {
	return &decoder{
		collector: newCollector(file, text), root: Default(), folder: filepath.Dir(file),
		marks: make(map[path]mark), unsound: make(map[path]bool), faulty: make(map[path]bool), opaque: make(map[path]bool),
		budget: maxNodes,
	}
}

// custom is implemented by types with a form of their own in the file.
type custom interface {
	decode(d *decoder, p path, n *yaml.Node)
}

// defaulter is implemented by elements of lists that do not begin as zero.
type defaulter interface{ setDefaults() }

// entry is one key of a map and its value.
type entry struct {
	key   string
	at    mark // of the key
	value *yaml.Node
}

// fault records a fault of form at a node.
func (d *decoder) fault(p path, at mark, format string, args ...any) {
	d.add(at, fmt.Sprintf(format, args...))
	d.faulty[p] = true
	for ; !d.unsound[p]; p = p.parent() {
		d.unsound[p] = true
	}
}

// legible reports whether the keys below a path are all that the file has there: it and
// what encloses it could be read, and is not written by another name. Values below it
// may have faults all the same.
func (d *decoder) legible(p path) bool {
	for q := p; ; q = q.parent() {
		_, written := d.marks[q]
		if d.opaque[q] || d.faulty[q] && !written {
			return false
		}
		if q == "" {
			return true
		}
	}
}

func at(n *yaml.Node) mark { return mark{n.Line, n.Column} }

// resolve follows an alias to what its anchor names.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = resolve(n)
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

// value decodes a node into v. kind is the field's type tag.
func (d *decoder) value(p path, n *yaml.Node, v reflect.Value, kind string) {
	if !d.spend(p, n) {
		return
	}
	switch n = resolve(n); {
	case isCustom(v):
		v.Addr().Interface().(custom).decode(d, p, n)
	case isScalar(v):
		d.scalar(p, n, v, kind)
	case v.Kind() == reflect.Slice:
		d.list(p, n, v, kind)
	case d.other(p, n, v):
	default:
		d.structure(p, n, v)
	}
}

// spend takes one node from the budget and reports, once, that it is used up.
func (d *decoder) spend(p path, n *yaml.Node) bool {
	d.budget--
	if d.budget == 0 {
		d.fault(p, at(n), "the file is too large once its anchors are followed")
	}
	return d.budget > 0
}

func isCustom(v reflect.Value) bool {
	_, ok := reflect.TypeAssert[custom](v.Addr())
	return ok
}

// structure decodes a map into a struct, field by field in the struct's order.
// A map without any key says nothing, so the defaults stand.
func (d *decoder) structure(p path, n *yaml.Node, v reflect.Value) {
	entries := d.entries(p, n)
	fields := keyedFields(v.Type())
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.key
	}
	for _, e := range entries {
		if !slices.Contains(known, e.key) {
			d.unknown(p, e, known)
		}
	}
	for _, f := range fields {
		i := slices.IndexFunc(entries, func(e entry) bool { return e.key == f.key })
		if i >= 0 {
			d.mark(p.child(f.key), entries[i])
			d.value(p.child(f.key), entries[i].value, v.Field(f.index), f.kind)
		} else if left, ok := reflect.TypeAssert[*Value](v.Field(f.index).Addr()); ok {
			left.in = scope{d, p.child(f.key)}
		}
	}
}

func (d *decoder) unknown(p path, e entry, known []string) {
	place := ""
	if d.belongs != nil {
		place = d.belongs(e.key)
	}
	text, meant := unknownKey(e.key, place, known)
	if meant != "" {
		p = p.child(meant) // it was meant to be said, so it is not missing
	}
	d.fault(p, e.at, "%s", text)
	if meant == e.key+"_file" {
		d.hide(e.at, len(e.key)+1)
	}
}

// mark remembers where a value stands: at the key for maps and lists, since
// theirs begins at their first element.
func (d *decoder) mark(p path, e entry) {
	d.marks[p] = e.at
	if resolve(e.value).Kind == yaml.ScalarNode && !isNull(e.value) {
		d.marks[p] = at(e.value)
	}
}

// field is a struct field that the file can set.
type field struct {
	key, kind, like string
	index           int
}

func keyedFields(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		if key := f.Tag.Get("yaml"); key != "-" && key != "" {
			fields = append(fields, field{key: key, kind: f.Tag.Get("type"), like: f.Tag.Get("like"), index: i})
		}
	}
	return fields
}

// list decodes a list; what it holds replaces the default.
func (d *decoder) list(p path, n *yaml.Node, v reflect.Value, kind string) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		text := "this is a list"
		if n.Kind == yaml.ScalarNode {
			text = fmt.Sprintf("this is a list, write [%s]", list(strings.Fields(n.Value)))
		}
		if kind == kindArguments {
			text += "; no shell is involved"
		}
		d.fault(p, at(n), "%s", text)
		d.opaque[p] = true
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		element := v.Index(i)
		if def, ok := reflect.TypeAssert[defaulter](element.Addr()); ok {
			def.setDefaults()
		}
		here := p.child(strconv.Itoa(i))
		d.marks[here] = at(c)
		d.value(here, c, element, kind)
	}
}

// named returns the entries of a map whose keys are names of ours.
func (d *decoder) named(p path, n *yaml.Node) []entry {
	entries := d.entries(p, n)
	for _, e := range entries {
		d.marks[p.child(e.key)] = e.at
		if err := topology.CheckName(e.key); err != nil {
			d.fault(p.child(e.key), e.at, "%v", err)
		}
	}
	return entries
}

// entries returns the keys of a map in the file's order, each once, after
// merges ("<<: *base"), where a map's own keys win. Nothing at all counts as
// an empty map.
func (d *decoder) entries(p path, n *yaml.Node) []entry {
	if n = resolve(n); isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.fault(p, at(n), "this is a map of keys and values, not a %s", kindName(n))
		d.opaque[p] = true
		return nil
	}
	return d.merged(p, n, make(map[*yaml.Node]bool))
}

func (d *decoder) merged(p path, n *yaml.Node, seen map[*yaml.Node]bool) []entry {
	var entries []entry
	var bases []*yaml.Node
	first := make(map[string]mark)
	seen[n] = true
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := resolve(n.Content[i]), n.Content[i+1]
		switch {
		case !d.spend(p, k):
			return entries
		case k.Tag == "!!merge":
			bases = append(bases, v)
		case k.Kind != yaml.ScalarNode:
			d.fault(p, at(k), "a key is a text, not a %s", kindName(k))
		case first[k.Value] != mark{}:
			d.fault(p.child(k.Value), at(k), "key %s is repeated, it stands in line %d already", quote(k.Value), first[k.Value].line)
		default:
			first[k.Value] = at(n.Content[i])
			entries = append(entries, entry{k.Value, at(n.Content[i]), v})
		}
	}
	for _, b := range bases {
		entries = d.merge(p, entries, b, seen)
	}
	return entries
}

// merge adds the keys of a merged map, or of each map of a merged list, that
// are not there yet. A map is merged once, so cycles and bombs end.
func (d *decoder) merge(p path, entries []entry, base *yaml.Node, seen map[*yaml.Node]bool) []entry {
	base = resolve(base)
	switch {
	case seen[base]:
		return entries
	case base.Kind == yaml.SequenceNode:
		seen[base] = true
		for _, b := range base.Content {
			entries = d.merge(p, entries, b, seen)
		}
		return entries
	case base.Kind != yaml.MappingNode:
		d.fault(p, at(base), "`<<` takes a map, not a %s", kindName(base))
		d.opaque[p] = true
		return entries
	}
	have := make(map[string]bool, len(entries))
	for _, e := range entries {
		have[e.key] = true
	}
	for _, e := range d.merged(p, base, seen) {
		if !have[e.key] {
			entries = append(entries, e)
		}
	}
	return entries
}

// peek returns the entries of a map without reporting anything.
func (d *decoder) peek(n *yaml.Node) []entry {
	return newDecoder("", nil).entries("", n)
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "map"
	case yaml.SequenceNode:
		return "list"
	default:
		return "single value"
	}
}

// readable reports, for Load, whether a file that is named can be read. That says nothing
// of form, and hides nothing.
func (d *decoder) readable(n *yaml.Node, name string) {
	if !d.open {
		return
	}
	if _, err := ReadFile(name); err != nil {
		d.add(at(n), fmt.Sprintf("this file must be readable: %v", err))
	}
}
