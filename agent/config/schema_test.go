package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// formFaults are the files of testdata/bad that the schema must refuse too, and
// what it says first.
var formFaults = map[string]string{
	"agent_check.yaml":         "agent_check.admin_words: sometimes is none of ",
	"addresses.yaml":           "clusters.main.nodes.n1: 10.0.0.1 is not like ",
	"consul_service.yaml":      "clusters.key.consul_service.service: unknown",
	"durations.yaml":           "clusters.main.policy.kill_after: <nil> is no string",
	"enums.yaml":               "clusters.main.authority: patron is none of ",
	"haproxy.yaml":             "haproxy.file.rise: -1 is below 0",
	"health.yaml":              "health.compat: patroni is none of ",
	"local_form.yaml":          "local: main is not like ",
	"nodes.yaml":               "clusters.main.nodes.bad name: ",
	"one_round.yaml":           "clusters.main.nodes.n2: 10.0.0.2:543x is not like ",
	"one_round_lists.yaml":     "clusters.main.poools: unknown",
	"one_round_mesh.yaml":      "clusters.main.pools.primary.refuse: nowhere is not like ",
	"one_round_names.yaml":     "clutsers: unknown",
	"one_round_templates.yaml": "clusters.MAIN.authority: patrony is none of ",
	"pg_auto_failover.yaml":    "clusters.main.pg_auto_failover.addresses.here: here is not like ",
	"patroni_rest.yaml":        "clusters.word.patroni.source: etcd is none of ",
	"policy_values.yaml":       "clusters.form.policy.flap.count: many is no integer",
	"pool_values.yaml":         "clusters.main.pools.form.fallback: stael is none of ",
	"pools.yaml":               "clusters.main.pools.list: ",
	"sizes.yaml":               "clusters.main.pools.a.max_lag: 64 is above 0",
	"templates.yaml":           "templates.0.check: ",
	"top_list.yaml":            ": [a b] is no object",
	"top_text.yaml":            ": clusters is no object",
	"write_probe.yaml":         "postgres.write_probe: [a] is no string",
	"pgbouncers.yaml":          "pgbouncers.1.databases.3.pool: main is not like",
	"unknown_keys.yaml":        "clusters.main.nods: unknown",
}

// TestSchema: files that Parse takes are right by the schema, files with faults
// of form are not, and those with faults of sense alone are.
func TestSchema(t *testing.T) {
	var s map[string]any
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	checked := make(map[string]bool)
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml", "../../examples/*/pgsteer*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files: %v", pattern, err)
		}
		for _, file := range files {
			value, ok := readYAML(t, file)
			if !ok {
				continue
			}
			name := filepath.Base(file)
			checked[name] = true
			want := ""
			if strings.Contains(pattern, "bad") {
				want = formFaults[name]
			}
			got := strings.Join(violations("", s, value), "\n")
			if (want == "") != (got == "") || !strings.HasPrefix(got, want) {
				t.Errorf("%s: want %q, got\n%s", file, want, got)
			}
		}
	}
	for name := range formFaults {
		if !checked[name] {
			t.Errorf("%s was not checked", name)
		}
	}
}

// readYAML reads a file as editors do; not ok when it is no YAML or no
// configuration at all.
func readYAML(t *testing.T, file string) (value any, ok bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = yaml.Unmarshal(text, &value)
	return plainMaps(value), err == nil && value != nil
}

// plainMaps makes every key of a map a text.
func plainMaps(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plainMaps(v[k])
		}
	case map[any]any:
		m := make(map[string]any)
		for k, e := range v {
			m[fmt.Sprint(k)] = plainMaps(e)
		}
		return m
	case []any:
		for i := range v {
			v[i] = plainMaps(v[i])
		}
	}
	return v
}

// violations checks a value against the part of JSON Schema that Schema uses,
// and refuses any other part.
func violations(at string, s map[string]any, v any) []string {
	var found []string
	add := func(format string, args ...any) {
		found = append(found, strings.TrimPrefix(at, ".")+": "+fmt.Sprintf(format, args...))
	}
	for _, keyword := range sortedKeys(s) {
		is := s[keyword]
		switch keyword {
		case "$schema", "title", "description", "default", "propertyNames", "additionalProperties":
		case "type":
			if types := stringsOf(is); !slices.ContainsFunc(types, func(t string) bool { return isType(v, t) }) {
				add("%v is no %s", v, strings.Join(types, " or "))
			}
		case "enum":
			if !slices.ContainsFunc(is.([]any), func(e any) bool { return e == v }) {
				add("%v is none of %v", v, is)
			}
		case "pattern":
			if text, ok := v.(string); ok && !regexp.MustCompile(is.(string)).MatchString(text) {
				add("%s is not like %s", text, is)
			}
		case "minimum":
			if n, ok := v.(int); ok && n < int(is.(float64)) {
				add("%d is below %v", n, is)
			}
		case "maximum":
			if n, ok := v.(int); ok && n > int(is.(float64)) {
				add("%d is above %v", n, is)
			}
		case "items":
			list, _ := v.([]any)
			for i, e := range list {
				found = append(found, violations(at+"."+strconv.Itoa(i), is.(map[string]any), e)...)
			}
		case "properties":
		default:
			add("the schema uses %s, which is not checked here", keyword)
		}
	}
	if m, ok := v.(map[string]any); ok {
		found = append(found, inMap(at, s, m)...)
	}
	return found
}

func inMap(at string, s, m map[string]any) []string {
	var found []string
	properties, _ := s["properties"].(map[string]any)
	for _, key := range sortedKeys(m) {
		here := at + "." + key
		if names, ok := s["propertyNames"].(map[string]any); ok {
			found = append(found, violations(here, names, key)...)
		}
		if p, ok := properties[key].(map[string]any); ok {
			found = append(found, violations(here, p, m[key])...)
			continue
		}
		switch others := s["additionalProperties"].(type) {
		case map[string]any:
			found = append(found, violations(here, others, m[key])...)
		case bool:
			if !others {
				found = append(found, strings.TrimPrefix(here, ".")+": unknown")
			}
		}
	}
	return found
}

func isType(v any, word string) bool {
	switch v.(type) {
	case nil:
		return word == "null"
	case string:
		return word == "string"
	case bool:
		return word == "boolean"
	case int, uint64:
		return word == "integer" || word == "number"
	case float64:
		return word == "number"
	case []any:
		return word == "array"
	default:
		return word == "object"
	}
}

func sortedKeys(m map[string]any) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func stringsOf(v any) []string {
	var texts []string
	for _, e := range v.([]any) {
		texts = append(texts, e.(string))
	}
	return texts
}

// TestSchemaIsWhole: the schema has every key, with its sentence and default.
func TestSchemaIsWhole(t *testing.T) {
	var s map[string]any
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys() {
		at := s
		for element := range strings.SplitSeq(k.Path, ".") {
			key, isList := strings.CutSuffix(element, "[]")
			next, ok := at["additionalProperties"].(map[string]any)
			if element != "NAME" {
				properties, _ := at["properties"].(map[string]any)
				next, ok = properties[key].(map[string]any)
			}
			if isList && ok {
				next, ok = next["items"].(map[string]any)
			}
			if !ok {
				t.Fatalf("%s: nothing at %s", k.Path, element)
			}
			at = next
		}
		if at["description"] == nil {
			t.Errorf("%s has no description", k.Path)
		}
		if k.form == formSingle && k.Default != "" && k.Default != "NAME" && fmt.Sprint(at["default"]) != k.Default {
			t.Errorf("%s: default %v, want %s", k.Path, at["default"], k.Default)
		}
	}
	own := s["properties"].(map[string]any)["clusters"].(map[string]any)["additionalProperties"].(map[string]any)
	user := own["properties"].(map[string]any)["postgres"].(map[string]any)["properties"].(map[string]any)["user"].(map[string]any)
	if user["default"] != nil || user["description"] == nil {
		t.Errorf("a cluster's postgres.user: %v; its default is the shared section's", user)
	}
}
