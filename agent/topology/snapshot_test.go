package topology

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
	"time"
)

// TestCodes: the list is closed and complete, each with its own sentence.
func TestCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := make(map[string]string) // value to name
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Code" {
			declared[spec.Values[0].(*ast.BasicLit).Value] = spec.Names[0].Name
		}
		return true
	})
	if len(declared) < 30 {
		t.Fatalf("only %d constants of type Code found", len(declared))
	}
	seen, sentences := make(map[Code]bool), make(map[string]bool)
	for _, c := range Codes {
		if seen[c.Code] || sentences[c.Manual] {
			t.Errorf("%s is listed twice, or its sentence is", c.Code)
		}
		seen[c.Code], sentences[c.Manual] = true, true
		if c.Manual == "" || c.Manual[len(c.Manual)-1] != '.' {
			t.Errorf("%s has no whole sentence for the manual", c.Code)
		}
		if c.Code.Info().Code != c.Code {
			t.Errorf("%s is described as %+v", c.Code, c.Code.Info())
		}
		switch c.Severity {
		case SeverityOK, SeverityInfo, SeverityWarn, SeverityError:
		default:
			t.Errorf("%s has severity %q", c.Code, c.Severity)
		}
	}
	for value, name := range declared {
		if !seen[Code(value[1:len(value)-1])] {
			t.Errorf("%s is not in Codes", name)
		}
	}
	if len(seen) != len(declared) {
		t.Errorf("%d codes are listed, %d are declared", len(seen), len(declared))
	}
}

func TestVerdictText(t *testing.T) {
	for _, v := range []Verdict{Undecided, Up, Drain, Down} {
		b, err := json.Marshal(v)
		var back Verdict
		if err != nil || json.Unmarshal(b, &back) != nil || back != v {
			t.Errorf("%s is read as %s", b, back)
		}
	}
	v := Up
	if err := v.UnmarshalText([]byte("nonsense")); err != nil || v != Undecided {
		t.Errorf("a word that nobody knows is %s, %v, want undecided", v, err)
	}
	if Undecided >= Up || Up >= Drain || Drain >= Down {
		t.Error("verdicts are not ordered by harshness")
	}
}

func TestLookups(t *testing.T) {
	s := &Snapshot{
		Nodes: []Node{{Name: "a"}, {Name: "b"}},
		Pools: []PoolVerdicts{{Pool: "primary", Nodes: []NodeVerdict{
			{Node: "a", Verdict: Down},
			{Node: "b", Verdict: Up, Reasons: []Reason{{Code: CodeWriter}}},
		}}},
	}
	if _, ok := s.Node("b"); !ok {
		t.Error("b is not found")
	}
	if _, ok := s.Node("c"); ok {
		t.Error("c is found")
	}
	if _, ok := s.Pool("replica"); ok {
		t.Error("a pool that does not exist is found")
	}
	p, _ := s.Pool("primary")
	if up := p.Up(); len(up) != 1 || up[0].Node != "b" || up[0].Reason().Code != CodeWriter {
		t.Errorf("up: %+v", up)
	}
	v, ok := p.Verdict("a")
	if !ok || v.Reason().Code != CodeNoEvidence || p.Undecided() {
		t.Errorf("a: %+v, undecided %t", v, p.Undecided())
	}
	if v, ok := p.Verdict("c"); ok || v.Verdict != Undecided {
		t.Errorf("c: %+v, %t", v, ok)
	}
	p.Nodes[0].Verdict = Undecided
	if !p.Undecided() {
		t.Error("an undecided node is not noticed")
	}
}

func TestViewValid(t *testing.T) {
	var none *View
	v := &View{Snapshot: &Snapshot{}, ValidUntil: 10}
	if none.Valid(1) || (&View{ValidUntil: 10}).Valid(1) || !v.Valid(10) || v.Valid(11) {
		t.Error("validity is wrong")
	}
}

func TestMaintenanceActive(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := Maintenance{Records: []MaintenanceRecord{
		{Node: "a", Until: now}, {Node: "b", Until: now.Add(1)}, {Node: "c"},
	}}
	for node, want := range map[string]bool{"a": false, "b": true, "c": true, "d": false} {
		if _, ok := m.Active(node, now); ok != want {
			t.Errorf("%s: %t, want %t", node, ok, want)
		}
	}
	if _, ok := (Maintenance{Records: []MaintenanceRecord{{}}}).Active("x", now); !ok {
		t.Error("a record for the whole cluster takes x out")
	}
	m.Records = append(m.Records, MaintenanceRecord{Agent: true, Until: now.Add(1)})
	if !m.Alone(now) || m.Alone(now.Add(1)) {
		t.Error("the agent itself is out until the end of its record")
	}
}
