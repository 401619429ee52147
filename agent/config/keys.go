package config

import (
	"fmt"
	"reflect"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Key describes one key that a file may hold: for the manual, whose test reads
// this list, and for a schema.
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
}

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
		return []Key{{Path: path, Type: "as " + f.like, Default: "as " + f.like}}
	case isScalar(v):
		return []Key{{Path: path, Type: string(typeName(v, f.kind)), Default: fmt.Sprint(v.Interface())}}
	case v.Kind() == reflect.Struct:
		return append([]Key{{Path: path, Type: "map"}}, sectionKeys(path+".", v)...)
	}
	element := reflect.New(v.Type().Elem())
	if d, ok := reflect.TypeAssert[defaulter](element); ok {
		d.setDefaults()
	}
	if isScalar(element.Elem()) {
		return []Key{{Path: path, Type: "list of " + string(typeName(element.Elem(), f.kind)) + "s"}}
	}
	return append([]Key{{Path: path, Type: "list of maps"}}, sectionKeys(path+"[].", element.Elem())...)
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
	case *tags:
		return []Key{{Path: path, Type: "map of texts"}}
	}
	return nil
}
