package topology

import (
	"strings"
	"testing"
)

// TestSelector: the forms of Kubernetes' label selectors, on tags.
func TestSelector(t *testing.T) {
	n := Node{Name: "n1", Tags: map[string]string{"zone": "eu", "tier": "gold", "nofailover": "true", "noloadbalance": "false", "empty": ""}}
	for text, want := range map[string]bool{
		"":                                   true,
		"zone=eu":                            true,
		"zone==eu":                           true,
		"zone = eu ":                         true,
		"zone=us":                            false,
		"Zone=eu":                            false,
		"zone!=eu":                           false,
		"zone!=us":                           true,
		"rack!=a":                            true, // absent differs from every value
		"rack=a":                             false,
		"rack=":                              false, // absent is not empty
		"empty=":                             true,
		"nofailover":                         true,
		"!nofailover":                        false,
		"noloadbalance":                      false, // set, but false
		"!noloadbalance":                     true,
		"rack":                               false,
		"! rack":                             true,
		"tier in (gold, silver)":             true,
		"tier in (silver)":                   false,
		"tier notin (silver, bronze)":        true,
		"tier notin (gold)":                  false,
		"rack notin (a)":                     true,
		"zone=eu, tier in (gold,x), !rack":   true,
		"zone=eu,tier in (silver,x),!rack":   false,
		"zone in (us), tier=gold":            false,
		"zone=eu,zone!=us,tier,nofailover, ": false, // refused, see below
	} {
		sel, err := ParseSelector(text)
		if strings.HasSuffix(text, ", ") {
			if err == nil {
				t.Errorf("%q was taken", text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := sel.Matches(n); got != want {
			t.Errorf("%q matches: %t, want %t", text, got, want)
		}
		again, err := ParseSelector(sel.String())
		if err != nil || again.String() != sel.String() || again.Matches(n) != want {
			t.Errorf("%q became %q, which reads as %q (%v)", text, sel, again, err)
		}
	}
}

// TestSelectorFaults: every refusal names the selector and what is wrong.
func TestSelectorFaults(t *testing.T) {
	for text, want := range map[string]string{
		"=a":                    "no tag",
		",":                     "no tag",
		"a,":                    "no tag",
		"a b=c":                 `' ' is not allowed`,
		"a=b=c":                 "more than one operator",
		"a=!b":                  "more than one operator",
		"a=b)":                  "more than one operator",
		"a in b":                "not allowed",
		"a in (b":               "not like: zone in (a, b)",
		"a of (b)":              "not like: zone in (a, b)",
		"in (b)":                "not like: zone in (a, b)",
		"a in ((b))":            "not like: zone in (a, b)",
		"a!b in (c)":            "not allowed",
		"a in (b=c)":            "a value has ! or =",
		"a notin (!b)":          "a value has ! or =",
		"!":                     "no tag",
		"zone=eu, tier in gold": "not allowed",
	} {
		_, err := ParseSelector(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "selector") {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	var s Selector
	if err := s.UnmarshalText([]byte("a=b=c")); err == nil {
		t.Error("UnmarshalText took it")
	}
	if err := s.UnmarshalText([]byte("a = b")); err != nil {
		t.Error(err)
	}
	if b, err := s.MarshalText(); string(b) != "a=b" || err != nil {
		t.Errorf("MarshalText is %q, %v", b, err)
	}
}

// TestDefaults: what the rules take for granted of the defaults.
func TestDefaults(t *testing.T) {
	p := DefaultPolicy()
	if p.SilentAfter >= p.KillAfter || p.MinDown <= 0 || p.Flap.HoldDown > p.Flap.HoldDownMax || p.LagGrace <= 0 {
		t.Errorf("%+v", p)
	}
	for _, pool := range p.Pools {
		if pool.Mode == ModeRead && (pool.MaxLag > pool.MaxLagHard || pool.MinReplicas < 1 || pool.FallbackWeight != 100) {
			t.Errorf("%+v", pool)
		}
		if pool.Port != 0 || pool.Role != RoleAny || !pool.Select.Matches(Node{}) {
			t.Errorf("pool %s is narrowed", pool.Name)
		}
	}
	pool := Pool{Weights: map[string]int{"a": 7}}
	if pool.FixedWeight("a") != 7 || pool.FixedWeight("b") != 100 {
		t.Error("fixed weights")
	}
}
