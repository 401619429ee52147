package doctor

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

// TestManual holds the page of the manual, which is made of the checks and of the
// known faults of HAProxy.
func TestManual(t *testing.T) {
	const path = "../../docs/doctor.md"
	want := page()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("docs/doctor.md differs from the program (-program +page); go test ./agent/doctor -run Manual -update writes it anew\n%s", d)
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(`# Doctor

` + "`pgsteer doctor -c pgsteer.yaml`" + ` looks at everything that pgsteer needs around it. It changes nothing: one login per node,
role, monitor and PgBouncer (which logs it), three SHOWs at each PgBouncer, two questions per socket of HAProxy, one read per prefix of Consul, what its token may do, and a file made and removed in the state folder. Run it as the
agent's user (` + "`sudo -u pgsteer`" + `), with or without a running agent; nodes that come from Patroni, Consul or an inventory are known by a
running one alone.

Each finding is a line: OK; WARN, which works with a risk, or could not be found out; FAIL, which is configured and cannot work.
Below a WARN or FAIL stand what was tried and what to do. ` + "`-o json`" + ` prints the same as a list of objects with ` + "`check`, `subject`, `level`,\n`tried`, `found`, `do`" + `. Exit code 1 when anything is FAIL. This page is generated from the program.

## What is looked at

| check | what, and why |
|---|---|
`)
	for _, c := range Checks {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name, c.Doc)
	}
	fmt.Fprintf(&b, `
## Known faults of HAProxy

Tried are versions %s to %s. Distributions take fixes into older versions, which the number does not show: a fault says what may
be. Those without an entry in the last column are shown by `+"`doctor`"+`, and logged by the agent when it first speaks to such a HAProxy.

| versions | report | what happens | what to do | how pgsteer stays clear of it |
|---|---|---|---|---|
`, haproxycli.Oldest, haproxycli.Newest)
	for _, f := range haproxycli.Faults {
		versions := f.From.String() + " up to " + f.Below.String()
		if f.From == (haproxycli.Version{}) {
			versions = "before " + f.Below.String()
		}
		what := f.What
		if f.Unsafe {
			what += " (FAIL)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", versions, orDash(f.Issue), what, f.Do, orDash(f.Avoided))
	}
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// Every check has a name of its own and a sentence.
func TestChecksAreWhole(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range Checks {
		if names[c.Name] || c.run == nil || !strings.HasSuffix(c.Doc, ".") {
			t.Errorf("%q is there twice, does nothing, or has no sentence", c.Name)
		}
		names[c.Name] = true
	}
}
