package healthapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const manual = "../../docs/patroni-api.md"

// difference is a row of the manual's table of differences from Patroni.
type difference struct {
	id                             string
	endpoints, conditions          []string // what stands in backticks, or capitals
	other, anywhere                bool     // *other*, all
	patroni, strict, old, present  []int    // statuses by the answerer; nil: words, or as Patroni
	strictSame, compatSame, status bool
}

var (
	backticks = regexp.MustCompile("`([^`]*)`")
	words     = regexp.MustCompile(`\b[A-Z]{3,}\b`)
	statuses  = regexp.MustCompile(`^(\d{3})( or \d{3})*$`)
)

// section returns the lines of the manual's tables below a heading.
func section(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("the manual has no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

func differences(t *testing.T) []*difference {
	t.Helper()
	var all []*difference
	for _, c := range section(t, "Differences from Patroni") {
		if len(c) != 7 || c[0] == "id" {
			continue
		}
		d := &difference{
			id: c[0], endpoints: quoted(c[1]), conditions: append(quoted(c[2]), words.FindAllString(c[2], -1)...),
			other: c[1] == "*other*", anywhere: strings.HasPrefix(c[1], "all"),
			strict: codes(c[4], ""), old: codes(c[5], "3"), present: codes(c[5], "4"),
			strictSame: c[4] == "=", compatSame: c[5] == "=",
		}
		d.patroni = append(codes(c[3], "3"), codes(c[3], "4")...)
		d.status = d.patroni != nil && (d.strict != nil || d.old != nil || d.present != nil)
		all = append(all, d)
	}
	if len(all) < 30 {
		t.Fatalf("only %d rows are read", len(all))
	}
	return all
}

func quoted(cell string) (out []string) {
	for _, m := range backticks.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// codes reads "200", "200 or 503", and "3: 200, 4: 503" for one version.
func codes(cell, version string) (out []int) {
	for part := range strings.SplitSeq(cell, ", ") {
		if v, rest, ok := strings.Cut(part, ": "); ok && len(v) == 1 {
			if v != version {
				continue
			}
			part = rest
		}
		if !statuses.MatchString(part) {
			continue
		}
		for c := range strings.SplitSeq(part, " or ") {
			n, _ := strconv.Atoi(c)
			out = append(out, n)
		}
	}
	return out
}

// glob matches a text with a pattern in which * stands for any text.
func glob(pattern, text string) bool {
	begin, rest, open := strings.Cut(pattern, "*")
	if !open || !strings.HasPrefix(text, begin) {
		return text == pattern
	}
	for i := len(begin); i <= len(text); i++ {
		if glob(rest, text[i:]) {
			return true
		}
	}
	return false
}

// covers reports whether a row speaks of a request in a state.
func (d *difference) covers(q question) bool {
	path, query, _ := strings.Cut(q.target, "?")
	_, known := endpoints[strings.TrimPrefix(path, "/")]
	at := d.anywhere || d.other && !known && path != "/" ||
		slices.ContainsFunc(d.endpoints, func(p string) bool { return glob(p, path) })
	kinds := map[string]bool{}
	for _, c := range d.conditions {
		kind, fits := "state", glob(c, q.state)
		switch {
		case strings.HasPrefix(c, "?"):
			kind, fits = "query", strings.Contains(q.target, "?") && glob(c[1:], query)
		case strings.HasPrefix(c, "body:"):
			continue
		case words.MatchString(c) && !strings.HasPrefix(c, "M"):
			kind, fits = "method", c == q.method
		}
		kinds[kind] = kinds[kind] || fits
	}
	return at && !slices.Contains(slices.Collect(maps.Values(kinds)), false)
}

// question is a request that was put to Patroni, and Patroni's status.
type question struct {
	state, method, target string
	status                int
}

func questions(t *testing.T, file string) (all []question) {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		c := strings.Split(in.Text(), "\t")
		if len(c) != 4 {
			continue
		}
		n, err := strconv.Atoi(c[3])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, question{c[0], c[1], c[2], n})
	}
	return all
}

// inLab are the rows that only a real Patroni shows: internal/e2e compares with them.
var inLab = []string{"patroni-away", "held-standby", "member-unasked", "body-timeline", "metrics-more", "half-requests", "silent-clients", "unreadable-member", "unreadable-key", "body-sync-away"}

// askers are the choices of compat, with the answers of Patroni that each is held
// against and the column of the manual's table.
var askers = []struct {
	compat Compat
	file   string
	column func(*difference) ([]int, bool)
}{
	{Strict, "patroni4.tsv", func(d *difference) ([]int, bool) { return d.strict, d.strictSame }},
	{Patroni3, "patroni3.tsv", func(d *difference) ([]int, bool) { return d.old, d.compatSame }},
	{Patroni4, "patroni4.tsv", func(d *difference) ([]int, bool) { return d.present, d.compatSame }},
}

// TestAgainstPatroni puts to pgsteer what was put to Patroni. Every difference must
// be listed in the manual, and every listed one must show.
func TestAgainstPatroni(t *testing.T) {
	rows, seen := differences(t), make(map[string]map[Compat]bool)
	equal := make(map[Compat]int)
	for _, a := range askers {
		servers := make(map[string]*Server)
		for name, w := range worlds() {
			servers[name] = server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: a.compat})
		}
		for _, q := range questions(t, a.file) {
			h := servers[q.state]
			if h == nil {
				t.Fatalf("state %s has no view", q.state)
			}
			got, _ := ask(h, q.method, strings.Replace(q.target, "*", "/*", 1)) // as net/http reads "OPTIONS *"
			if got == q.status {
				equal[a.compat]++
				continue
			}
			listed := false
			for _, d := range rows {
				want, same := a.column(d)
				if !same && d.covers(q) && slices.Contains(d.patroni, q.status) && slices.Contains(want, got) {
					listed = true
					if seen[d.id] == nil {
						seen[d.id] = make(map[Compat]bool)
					}
					seen[d.id][a.compat] = true
				}
			}
			if !listed {
				t.Errorf("%s: %s %s in state %s is %d, Patroni's answer %d, and the manual does not list that", a.compat, q.method, q.target, q.state, got, q.status)
			}
		}
	}
	for _, d := range rows {
		for _, a := range askers {
			if want, same := a.column(d); d.status && !same && want != nil && !seen[d.id][a.compat] {
				t.Errorf("the manual lists %s, which does not show in %s", d.id, a.compat)
			}
		}
		if !d.status && told[d.id] == nil && !slices.Contains(inLab, d.id) && !strings.HasPrefix(d.id, "body-") { // TestBodiesAgainstPatroni has these
			t.Errorf("the manual lists %s, which no test shows", d.id)
		}
	}
	t.Log("equal answers:", equal)
}

// TestManualListsEveryPath holds the manual's tables of paths and of states
// against the code.
func TestManualListsEveryPath(t *testing.T) {
	var listed []string
	for _, c := range section(t, "Paths") {
		for _, p := range append(quoted(c[0]), quoted(c[1])...) {
			if p == "/" || strings.HasPrefix(c[1], "as ") && p != quoted(c[0])[0] {
				continue
			}
			listed = append(listed, strings.TrimPrefix(p, "/"))
		}
	}
	slices.Sort(listed)
	if want := slices.Sorted(maps.Keys(endpoints)); !slices.Equal(listed, want) {
		t.Errorf("the manual lists\n%v, the code has\n%v", listed, want)
	}
	var states []string
	for _, c := range section(t, "Differences from Patroni") {
		if len(c) == 2 {
			states = append(states, regexp.MustCompile(`\bM\d+`).FindAllString(c[0], -1)...)
		}
	}
	for name := range worlds() {
		if base, _, _ := strings.Cut(name, "-"); !slices.Contains(states, base) {
			t.Errorf("the manual does not say what state %s is", name)
		}
	}
}

// TestBodiesAgainstPatroni compares what the bodies hold, key by key.
func TestBodiesAgainstPatroni(t *testing.T) {
	rows, seen := differences(t), make(map[string]bool)
	for file, compat := range map[string]Compat{"patroni3.json": Patroni3, "patroni4.json": Patroni4} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var bodies map[string]any
		if err := json.Unmarshal(text, &bodies); err != nil {
			t.Fatal(err)
		}
		for state, want := range bodies {
			w, target := worlds()[state], "/patroni"
			if _, document := endpoints[state]; document {
				w, target = worlds()["M5"], "/"+state
			}
			if state == "cluster" {
				w = membersWorld()
			}
			_, answer := ask(server(t, w.snapshot, w.facts, Options{Compat: compat}), "GET", "/clusters/main/nodes/n1"+target)
			var got any
			if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			compareJSON(want, got, "", func(key, what string) {
				listed := false
				for _, d := range rows {
					if slices.Contains(d.conditions, "body:"+key) && d.covers(question{state: state, method: "GET", target: target}) {
						listed, seen[d.id] = true, true
					}
				}
				if !listed {
					t.Errorf("%s in %s: %s: %s, and the manual does not list that", compat, state, key, what)
				}
			})
		}
	}
	for _, d := range rows {
		if strings.HasPrefix(d.id, "body-") && !seen[d.id] && told[d.id] == nil && !slices.Contains(inLab, d.id) {
			t.Errorf("the manual lists %s, which does not show", d.id)
		}
	}
}

// compareJSON tells every key that one side lacks, and every value that differs.
func compareJSON(want, got any, at string, tell func(key, what string)) {
	w, isMap := want.(map[string]any)
	list, isList := want.([]any)
	switch g := got.(type) {
	case map[string]any:
		if !isMap {
			tell(at, fmt.Sprintf("%v in place of %v", got, want))
			return
		}
		for k := range merged(w, g) {
			key := strings.TrimPrefix(at+"."+k, ".")
			a, inWant := w[k]
			b, inGot := g[k]
			switch {
			case !inGot:
				tell(key, fmt.Sprintf("%v is absent", a))
			case !inWant:
				tell(key, fmt.Sprintf("%v is added", b))
			default:
				compareJSON(a, b, key, tell)
			}
		}
	case []any:
		if !isList || len(list) != len(g) {
			tell(at, fmt.Sprintf("%v in place of %v", got, want))
			return
		}
		for i := range g {
			compareJSON(list[i], g[i], at+"[]", tell)
		}
	default:
		if at != "dcs_last_seen" && want != got {
			tell(at, fmt.Sprintf("%v in place of %v", got, want))
		}
	}
}

func merged(a, b map[string]any) map[string]any {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
