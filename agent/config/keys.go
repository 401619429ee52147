package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Key describes one key that a file may hold: for the manual, whose test reads
// this list, and for Schema.
type Key struct {
	// Path is the way to the key, such as clusters.NAME.pools.NAME.mode or
	// templates[].name. NAME stands for any name, [] for an element of a list.
	Path string
	// Type is text, number, duration, size, address, path, file, socket,
	// map, list of …, or the allowed words.
	Type string
	// Default is the value of a file that leaves the key out, empty when there
	// is none.
	Default string

	form  form
	value typeWord // of a single value, or of what a list or map holds
	words []string // that value may be; nil: not only words
}

// form is what kind of YAML a key holds.
type form int

const (
	formSection form = iota // a map with keys of its own, or a list or map of those
	formSingle
	formList
	formMap
	formLike // as the section that value names
)

// Keys returns every key, in the order of the structs.
func Keys() []Key { return sectionKeys("", reflect.ValueOf(Default()).Elem()) }

func sectionKeys(prefix string, v reflect.Value) []Key {
	var keys []Key
	for _, f := range keyedFields(v.Type()) {
		keys = append(keys, fieldKeys(prefix+f.key, v.Field(f.index), f)...)
	}
	return keys
}

func fieldKeys(path string, v reflect.Value, f field) []Key {
	if keys := namedKeys(path, v); keys != nil {
		return keys
	}
	switch {
	case f.like != "":
		return []Key{{Path: path, Type: "as " + f.like, Default: "as " + f.like, form: formLike, value: typeWord(f.like)}}
	case isScalar(v):
		k := Key{Path: path, form: formSingle, value: typeName(v, f.kind), words: words(v.Interface()), Default: fmt.Sprint(v.Interface())}
		if limits[f.kind] != 0 && v.IsZero() {
			k.Default = "" // such a number counts from 1
		}
		k.Type = string(k.value)
		return []Key{k}
	case v.Kind() == reflect.Struct:
		return append([]Key{{Path: path, Type: "map"}}, sectionKeys(path+".", v)...)
	}
	element := reflect.New(v.Type().Elem())
	if d, ok := reflect.TypeAssert[defaulter](element); ok {
		d.setDefaults()
	}
	if isScalar(element.Elem()) {
		word := typeName(element.Elem(), f.kind)
		return []Key{{Path: path, Type: "list of " + plural(word), form: formList, value: word}}
	}
	return append([]Key{{Path: path, Type: "list of maps"}}, sectionKeys(path+"[].", element.Elem())...)
}

func plural(word typeWord) string {
	if strings.HasSuffix(string(word), "s") {
		return string(word) + "es"
	}
	return string(word) + "s"
}

// namedKeys describes the maps by name, nil for other types. Pools are shown
// with the defaults of mode read; a write pool has none of those limits.
func namedKeys(path string, v reflect.Value) []Key {
	switch v.Addr().Interface().(type) {
	case *Clusters:
		c := defaultCluster("NAME", Postgres{})
		return append([]Key{{Path: path, Type: "map"}}, sectionKeys(path+".NAME.", reflect.ValueOf(&c).Elem())...)
	case *Pools:
		p := defaultPool("NAME", topology.ModeRead)
		p.Mode = ""
		return append([]Key{{Path: path, Type: "map", Default: "primary, replica"}},
			sectionKeys(path+".NAME.", reflect.ValueOf(&p).Elem())...)
	case *Nodes:
		var n nodeSpec
		return append([]Key{{Path: path, Type: "map"}}, sectionKeys(path+".NAME.", reflect.ValueOf(&n).Elem())...)
	case *tags, *vars:
		return []Key{{Path: path, Type: "map of texts", form: formMap, value: typeText}}
	case *Addresses:
		return []Key{{Path: path, Type: "map of addresses", form: formMap, value: typeAddress}}
	case *Weights:
		return []Key{{Path: path, Type: "map of percents", form: formMap, value: kindPercent}}
	case *Sessions:
		either := words(sessionsKeep)
		return []Key{{Path: path, Type: "map of " + list(either), form: formMap, words: either}}
	}
	return nil
}
