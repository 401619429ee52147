package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// leaves visits every field that holds a value, in order.
func leaves(name string, v reflect.Value, visit func(name string, v reflect.Value)) {
	switch {
	case v.Type() == reflect.TypeFor[Secret](), v.Kind() == reflect.Map:
		visit(name, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			leaves(name+"."+v.Type().Field(i).Name, v.Field(i), visit)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			leaves(fmt.Sprintf("%s[%d]", name, i), v.Index(i), visit)
		}
	default:
		visit(name, v)
	}
}

func change(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(v.Uint() + 1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"changed": "x"}))
	case reflect.Struct:
		v.Set(reflect.ValueOf(NewSecret("changed")))
	default:
		t.Fatalf("a field of kind %s cannot be changed yet", v.Kind())
	}
}

// TestDiffSeesEveryField changes each field of a configuration by itself and
// wants the change reported, so that a new field cannot be forgotten. Only the
// shared postgres section does not count, see Diff.
func TestDiffSeesEveryField(t *testing.T) {
	before := parseFull(t)
	var names []string
	leaves("Config", reflect.ValueOf(before).Elem(), func(name string, _ reflect.Value) { names = append(names, name) })
	if len(names) < 100 {
		t.Fatalf("only %d fields were found", len(names))
	}
	for _, target := range names {
		after := parseFull(t)
		if !Diff(before, after).None() {
			t.Fatal("equal configurations differ")
		}
		leaves("Config", reflect.ValueOf(after).Elem(), func(name string, v reflect.Value) {
			if name == target {
				change(t, v)
			}
		})
		shared := strings.HasPrefix(target, "Config.Postgres.")
		if got := !Diff(before, after).None(); got == shared {
			t.Errorf("%s: a change is reported: %v", target, got)
		}
	}
}

func TestDiffNames(t *testing.T) {
	before, after := parseFull(t), parseFull(t)
	after.Clusters = Clusters{after.Clusters[3], after.Clusters[0], after.Clusters[1], defaultCluster("new", after.Postgres)}
	after.Clusters[1].Policy.MinDown = time.Minute
	after.Clusters[2].Postgres.Password = NewSecret("rotated")
	after.Templates = after.Templates[1:]
	compare(t, Changes{
		Clusters:  Delta{Added: []string{"new"}, Removed: []string{"third"}, Changed: []string{"main", "other"}},
		Templates: Delta{Removed: []string{"haproxy"}},
	}, Diff(before, after))

	after = parseFull(t)
	after.Clusters[0], after.Clusters[1] = after.Clusters[1], after.Clusters[0]
	if d := Diff(before, after); !d.None() {
		t.Errorf("the order of clusters counts: %+v", d)
	}
	after.Clusters[1].Pools[0], after.Clusters[1].Pools[1] = after.Clusters[1].Pools[1], after.Clusters[1].Pools[0]
	compare(t, Changes{Clusters: Delta{Changed: []string{"main"}}}, Diff(before, after))
}
