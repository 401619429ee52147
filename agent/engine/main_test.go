package engine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// How many histories a property sees. An ordinary run is a gate: it is short, and
// the same each time. PGSTEER_HISTORIES=10000 asks for that many, of a seed that
// is new each time and printed; -rapid.checks and -rapid.seed have the last word.
const (
	ordinaryHistories = "25"
	ordinarySeed      = "20261130"
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	histories, seed := ordinaryHistories, ordinarySeed
	if many := os.Getenv("PGSTEER_HISTORIES"); many != "" {
		histories, seed = many, strconv.FormatUint(rand.Uint64()|1, 10)
		if !given["rapid.seed"] {
			fmt.Fprintf(os.Stdout, "%s histories a property; the same ones again: -rapid.seed=%s\n", histories, seed)
		}
	}
	for name, value := range map[string]string{"rapid.checks": histories, "rapid.seed": seed} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintf(os.Stderr, "PGSTEER_HISTORIES: -%s=%s: %v\n", name, value, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}

// fewer lets a test whose histories are long have a part of the usual number.
func fewer(t *testing.T, part int) {
	t.Helper()
	histories(t, func(usual int) int { return max(1, usual/part) })
}

// atLeast lets a test whose histories are cheap have more than an ordinary number.
func atLeast(t *testing.T, n int) {
	t.Helper()
	histories(t, func(usual int) int { return max(n, usual) })
}

func histories(t *testing.T, number func(usual int) int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	usual := f.Value.String()
	n, err := strconv.Atoi(usual)
	if err == nil {
		err = f.Value.Set(strconv.Itoa(number(n)))
	}
	if err != nil {
		t.Fatalf("rapid.checks: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Value.Set(usual); err != nil {
			t.Errorf("rapid.checks: %v", err)
		}
	})
}
