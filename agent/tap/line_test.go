package tap

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// fill sets every field below v to something; texts are asked for by their path.
func fill(t *testing.T, v reflect.Value, text func(path string) string, path string) {
	t.Helper()
	if fillWhole(v, text, path) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(path))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(12345)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(123)
	case reflect.Uint64:
		v.SetUint(1<<63 + 12345) // more than a float can hold
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), text, path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), text, path)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, func(string) string { return "key" }, path)
		fill(t, element, text, path)
		v.SetMapIndex(key, element)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(t, v.Field(i), text, path+"."+f.Name)
			}
		}
	default:
		t.Fatalf("%s is a %s", path, v.Kind())
	}
}

// fillWhole sets what cannot be set field by field.
func fillWhole(v reflect.Value, text func(path string) string, path string) bool {
	switch x := v.Addr().Interface().(type) {
	case **topology.Documents: // no rule reads them, so they stay here
	case *time.Time:
		*x = time.Date(2026, 5, 1, 6, 0, 0, 123, time.UTC)
	case *topology.Tri:
		*x = topology.Yes
	case *topology.Verdict:
		*x = topology.Drain
	case *topology.Selector:
		*x, _ = topology.ParseSelector("zone in (a, b)")
	case *config.ListenAddress:
		*x = "10.0.0.1:5000"
	case *config.Secret:
		*x = config.NewSecret(text(path))
	default:
		return false
	}
	return true
}

func word(string) string { return "word" }

// Everything that an observation has arrives, also what it gets some day.
func TestAnObservationArrivesWhole(t *testing.T) {
	var o topology.Observation
	fill(t, reflect.ValueOf(&o).Elem(), word, "")
	b, err := json.Marshal(Line{Kind: KindObservation, Observation: (*Observation)(&o)})
	if err != nil {
		t.Fatal(err)
	}
	b = searched(t, b)
	var l Line
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(o, topology.Observation(*l.Observation)); d != "" {
		t.Errorf("(-sent +read)\n%s\n%s", d, b)
	}
}

// searched sends a line through the search for secrets, which finds none.
func searched(t *testing.T, line []byte) []byte {
	t.Helper()
	var l Line
	if err := json.Unmarshal(line, &l); err != nil {
		t.Fatal(err)
	}
	b, err := redacted(l, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ruling are the parts of a configuration that the rules need.
var ruling = []string{".Name", ".Authority", ".Nodes", ".Inventory", ".Policy", ".Pools", ".Patroni.Scope", ".Patroni.Namespace", ".Monitor.Formation", ".Monitor.Group", ".Postgres.User", ".Postgres.Database"}

func TestTheBeginningHoldsWhatTheRulesNeed(t *testing.T) {
	cluster := config.DefaultCluster("main")
	fill(t, reflect.ValueOf(&cluster).Elem(), func(path string) string {
		if slices.ContainsFunc(ruling, func(p string) bool { return strings.HasPrefix(path, p) }) {
			return "word"
		}
		return "hunter2"
	}, "")
	cluster.Postgres.PasswordFile = "hunter2"
	now := present{decided: Decided{Snapshot: snapshot("n1")}}
	fill(t, reflect.ValueOf(&now.decided.Saved).Elem(), word, "")
	at := topology.Clock{Mono: 5, Wall: time.Date(2026, 5, 1, 6, 0, 0, 0, time.UTC)}
	b, err := redacted(Line{Kind: KindBegin, Begin: Source{Cluster: cluster, Zone: "az-1"}.begin("v1", at, now)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "****") {
		t.Errorf("something else is sent: %s", b)
	}
	var l Line
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatal(err)
	}
	want := config.DefaultCluster(cluster.Name)
	want.Authority, want.Nodes, want.Inventory, want.Policy, want.Pools = cluster.Authority, cluster.Nodes, cluster.Inventory, cluster.Policy, cluster.Pools
	want.Patroni.Scope, want.Patroni.Namespace = cluster.Patroni.Scope, cluster.Patroni.Namespace
	want.Monitor.Formation, want.Monitor.Group = cluster.Monitor.Formation, cluster.Monitor.Group
	p := cluster.Postgres
	want.Postgres = config.Postgres{Interval: p.Interval, ConnectTimeout: p.ConnectTimeout, QueryTimeout: p.QueryTimeout, LoginEvery: p.LoginEvery}
	selectors := cmp.Comparer(func(a, b topology.Selector) bool { return a.String() == b.String() })
	if d := cmp.Diff(want, l.Begin.Cluster.Config(), selectors); d != "" {
		t.Errorf("cluster (-want +got)\n%s", d)
	}
	if d := cmp.Diff(&now.decided.Saved, l.Begin.Saved); d != "" {
		t.Errorf("saved (-want +got)\n%s", d)
	}
	if l.Begin.At != at || l.Begin.Zone != "az-1" || l.Begin.Version != "v1" || l.Begin.User != "word" || l.Begin.Database != "word" {
		t.Errorf("got %+v", l.Begin)
	}
}
