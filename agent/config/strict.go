package config

import (
	"iter"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Decode reads another YAML file, such as a scenario, as strictly as the
// configuration: into points at a struct whose fields carry yaml tags and may
// hold their defaults. Errors are *Faults.
//
// A field may be anything that the configuration holds, a map or list of such
// values (map keys are texts or numbers), a pointer (nil when nothing is
// written), a Value or yaml.Node (left as it is), or a type that implements
// Decodable. A Cluster is what stands below clusters.NAME: it gets
// DefaultCluster("main") unless the caller has filled it, and the same checks
// as there. A field without a yaml tag is not read. Decode panics when a
// field's type is none of these, whatever the text is.
func Decode(file string, data []byte, into any) error {
	d := newDecoder(file, data)
	if doc := d.document(data); doc != nil {
		d.marks[""] = at(doc)
		d.value("", doc, reflect.ValueOf(into).Elem(), "")
	}
	return d.err()
}

// Decodable is implemented by types with a form of their own in a file.
type Decodable interface {
	// DecodeYAML takes the value, or reports what is wrong with v.Fault. To add
	// checks or defaults to a struct's ordinary form, it calls v.Into with a
	// pointer to a type without the method: type plain T; v.Into((*plain)(t)).
	DecodeYAML(v Value)
}

// Value is a value of a YAML file at its place. As a field's type it leaves the
// value for later: Into decodes it. The zero Value is one that is not written.
// The Values of a file may not be used at the same time.
type Value struct {
	in scope
	n  *yaml.Node
}

func (v *Value) decode(d *decoder, p path, n *yaml.Node) { *v = Value{scope{d, p}, n} }

// Written reports whether the file has the value at all.
func (v Value) Written() bool { return v.n != nil }

// Node is the value as YAML has it, aliases resolved; nil when not written.
func (v Value) Node() *yaml.Node { return v.n }

// Place is where the value stands, a map or list at its key; counted from 1,
// zero when it is not written.
func (v Value) Place() (line, column int) {
	if v.n == nil {
		return 0, 0
	}
	if m, ok := v.in.d.marks[v.in.at]; ok {
		return m.line, m.column
	}
	return v.n.Line, v.n.Column
}

// Text is the text of a single value; not ok for anything else.
func (v Value) Text() (text string, ok bool) {
	if v.n == nil || v.n.Kind != yaml.ScalarNode || isNull(v.n) {
		return "", false
	}
	return v.n.Value, true
}

// Into decodes the value into what dst points at and reports whether that went
// well. Faults go to the error of Decode. Nothing happens when it is not written.
func (v Value) Into(dst any) (ok bool) {
	if v.n == nil {
		return true
	}
	before := len(v.in.d.found)
	v.in.d.value(v.in.at, v.n, reflect.ValueOf(dst).Elem(), "")
	return len(v.in.d.found) == before
}

// Fault adds a fault to the error of Decode. It stands at the value, or at what
// encloses it when it is not written.
func (v Value) Fault(format string, args ...any) { v.in.fault("", format, args...) }

// Key is the value below a key of a map.
func (v Value) Key(key string) Value {
	below := Value{in: v.in.in(key)}
	if v.n == nil || v.n.Kind != yaml.MappingNode {
		return below
	}
	for _, e := range v.in.d.peek(v.n) {
		if e.key == key {
			below.n = resolve(e.value)
			v.in.d.mark(below.in.at, e)
		}
	}
	return below
}

// Entries are the keys of a map and their values in the file's order. What is
// no map is a fault and has none.
func (v Value) Entries() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.n == nil {
			return
		}
		for _, e := range v.in.d.entries(v.in.at, v.n) {
			below := v.in.in(e.key)
			v.in.d.mark(below.at, e)
			if !yield(e.key, Value{below, resolve(e.value)}) {
				return
			}
		}
	}
}

// Elements are the values of a list. What is no list has none.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.n == nil || v.n.Kind != yaml.SequenceNode {
			return
		}
		for i, c := range v.n.Content {
			below := v.in.in(strconv.Itoa(i))
			v.in.d.marks[below.at] = at(c)
			if !yield(i, Value{below, resolve(c)}) {
				return
			}
		}
	}
}

// DefaultCluster is a cluster of which a file says nothing but its name.
func DefaultCluster(name string) Cluster { return defaultCluster(name, Default().Postgres) }

// decode makes a Cluster a field's type of any file; Clusters decodes its own,
// which are checked together.
func (c *Cluster) decode(d *decoder, p path, n *yaml.Node) {
	if c.Name == "" {
		*c = DefaultCluster("main")
	}
	d.structure(p, n, reflect.ValueOf(c).Elem())
	in := scope{d, p}
	c.check(in)
	c.checkTiming(in, in.in("postgres"))
}

// other decodes the kinds of values that the configuration itself does not
// need. It reports whether v is one.
func (d *decoder) other(p path, n *yaml.Node, v reflect.Value) bool {
	if raw, ok := reflect.TypeAssert[*yaml.Node](v.Addr()); ok {
		*raw = *n
		return true
	}
	if own, ok := reflect.TypeAssert[Decodable](v.Addr()); ok {
		own.DecodeYAML(Value{scope{d, p}, n})
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !isNull(n) {
			v.Set(reflect.New(v.Type().Elem()))
			d.value(p, n, v.Elem(), "")
		}
	case reflect.Map:
		d.mapping(p, n, v)
	default:
		return false
	}
	return true
}

// mapping decodes a map by key. What it holds replaces the default.
func (d *decoder) mapping(p path, n *yaml.Node, v reflect.Value) {
	if isNull(n) {
		return
	}
	m := reflect.MakeMap(v.Type())
	for _, e := range d.entries(p, n) {
		here := p.child(e.key)
		d.mark(here, e)
		key := reflect.New(v.Type().Key()).Elem()
		d.value(here, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: e.key, Line: e.at.line, Column: e.at.column}, key, "")
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(here, e.value, element, "")
		m.SetMapIndex(key, element)
	}
	v.Set(m)
}
