package consulinit

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// body is a document as Consul's JSON has it, without what is empty or Consul's own.
type body map[string]any

// own are the fields that Consul adds.
var own = []string{"CreateIndex", "ModifyIndex", "ID", "Hash"}

// bodyOf reads what can be written as JSON.
func bodyOf(v any) (body, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var b body
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	for _, key := range own {
		delete(b, key)
	}
	prune(b)
	return b, nil
}

// prune takes out what says nothing: Consul fills in empty fields, and the names
// of the namespace and partition that everything is in by default.
func prune(m map[string]any) {
	maps.DeleteFunc(m, func(key string, v any) bool {
		switch v := v.(type) {
		case map[string]any:
			prune(v)
			return len(v) == 0
		case []any:
			for _, one := range v {
				if inner, is := one.(map[string]any); is {
					prune(inner)
				}
			}
			return len(v) == 0
		case string:
			return v == "" || v == "default" && (key == "Namespace" || key == "Partition")
		case float64:
			return v == 0
		case bool:
			return !v
		}
		return v == nil
	})
}

// body never fails: the library's types are made for JSON.
func (d Document) body() body {
	var v any = d.entry
	if d.query != nil {
		v = d.query
	}
	b, err := bodyOf(v)
	if err != nil {
		panic(fmt.Sprintf("consulinit: %s: %v", d.ID(), err))
	}
	return b
}

// Text is a document as people write it: an entry in HCL, as for consul config
// write, a query in JSON, as for POST /v1/query.
func (d Document) Text() string { return d.body().text(d.Kind) }

// JSON is what Text is, in JSON.
func (d Document) JSON() json.RawMessage { return json.RawMessage(d.body().json()) }

// IsEntry reports whether a document is a config entry.
func (d Document) IsEntry() bool { return d.query == nil }

func (b body) text(kind string) string {
	if kind == KindQuery {
		return b.json() + "\n"
	}
	var out strings.Builder
	writeHCL(&out, b, "")
	return out.String()
}

func (b body) json() string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(b); err != nil {
		panic(fmt.Sprintf("consulinit: %v", err)) // it came from JSON
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// writeHCL writes the fields of an object, those first that say what it is.
func writeHCL(out *strings.Builder, m map[string]any, indent string) {
	first := []string{"Kind", "Name"}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(k string) bool { return slices.Contains(first, k) })
	for _, key := range append(first, keys...) {
		if v, has := m[key]; has {
			out.WriteString(indent + hclKey(key) + " = ")
			writeValue(out, v, indent)
			out.WriteString("\n")
		}
	}
}

func writeValue(out *strings.Builder, v any, indent string) {
	deeper := indent + "  "
	switch v := v.(type) {
	case map[string]any:
		out.WriteString("{\n")
		writeHCL(out, v, deeper)
		out.WriteString(indent + "}")
	case []any:
		out.WriteString("[\n")
		for _, one := range v {
			out.WriteString(deeper)
			writeValue(out, one, deeper)
			out.WriteString(",\n")
		}
		out.WriteString(indent + "]")
	case string:
		out.WriteString(strconv.Quote(v))
	default:
		fmt.Fprint(out, v)
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func hclKey(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return strconv.Quote(key)
}
