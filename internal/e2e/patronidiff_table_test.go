package e2e

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// intended is a row of the manual's table of differences from Patroni. What the
// table's cells mean stands above it in the manual.
type intended struct {
	id        string
	endpoints []string // patterns
	anywhere  bool     // all endpoints
	other     bool     // all endpoints that Patroni does not have
	states    []string // patterns
	methods   []string
	queries   []string // patterns
	keys      []string // of the body
	patroni   string
	ours      map[string]string // by mode
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	capitals = regexp.MustCompile(`\b[A-Z]{3,}\b`)
	statuses = regexp.MustCompile(`^(\d{3})( or \d{3})*$`)
	element  = regexp.MustCompile(`\[[^]]*\]`)
)

// readManual reads the table of the manual. Nothing that differs is allowed which
// it lacks.
func readManual(t *testing.T) (all []intended) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "patroni-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Differences from Patroni\n")
	for line := range strings.Lines(text) {
		c := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(c) == 7 && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| id ") {
			all = append(all, newIntended(c))
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d rows of the manual's table are read", len(all))
	}
	for _, named := range []map[string][]string{worded, wordedRaw, wordedManner, stored} {
		for at, ids := range named {
			for _, id := range ids {
				if !slices.ContainsFunc(all, func(m intended) bool { return m.id == id }) {
					t.Errorf("the manual's table lacks %s, which is about %s", id, at)
				}
			}
		}
	}
	return all
}

func newIntended(cells []string) intended {
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	m := intended{
		id: cells[0], anywhere: strings.HasPrefix(cells[1], "all"), other: cells[1] == "*other*", patroni: cells[3],
		methods: capitals.FindAllString(quoted.ReplaceAllString(cells[2], ""), -1),
		ours:    map[string]string{strict: cells[4], compat: cells[5]},
	}
	if cells[5] == "the same" {
		m.ours[compat] = cells[4]
	}
	for _, p := range quoted.FindAllStringSubmatch(cells[1], -1) {
		m.endpoints = append(m.endpoints, p[1])
	}
	for _, p := range quoted.FindAllStringSubmatch(cells[2], -1) {
		switch text := p[1]; {
		case strings.HasPrefix(text, "body:"):
			m.keys = append(m.keys, text[len("body:"):])
		case strings.HasPrefix(text, "?"):
			m.queries = append(m.queries, text[1:])
		case strings.HasPrefix(text, "M"):
			m.states = append(m.states, text)
		}
	}
	return m
}

// about reports whether a row speaks of a question.
func (m intended) about(q question) bool {
	path, query, _ := strings.Cut(q.target, "?")
	some := func(patterns []string, text string) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return like(p, text) })
	}
	at := m.anywhere || m.other && !endpoint(path) || len(m.endpoints) > 0 && some(m.endpoints, path)
	return at && some(m.states, q.row) && some(m.methods, q.method) && some(m.queries, query)
}

// endpoint reports whether Patroni has an endpoint.
func endpoint(path string) bool {
	for _, g := range groups {
		if slices.Contains(g, path) {
			return true
		}
	}
	return slices.Contains(others, path)
}

// like matches a text with a pattern in which * stands for any text.
func like(pattern, text string) bool {
	begin, rest, open := strings.Cut(pattern, "*")
	if !open || !strings.HasPrefix(text, begin) {
		return text == pattern
	}
	for i := len(begin); i <= len(text); i++ {
		if like(rest, text[i:]) {
			return true
		}
	}
	return false
}

// says reads a cell for a version of Patroni: "3: 200, 4: 503" is two cells.
func says(cell string, v4 bool) string {
	for part := range strings.SplitSeq(cell, ", ") {
		if version, rest, ok := strings.Cut(part, ": "); ok && (version == "3" || version == "4") {
			if (version == "4") == v4 {
				return rest
			}
			continue
		}
		return cell
	}
	return ""
}

// allows reports whether a row of the manual lists this difference. A row whose
// answers are words lists nothing by itself, only where the test names it.
func (m intended) allows(x result, v4 bool) bool {
	theirs, ours := says(m.patroni, v4), says(m.ours[x.mode], v4)
	if slices.Contains(x.known, m.id) && !x.body {
		return !statuses.MatchString(ours) || strings.Contains(ours, x.ours)
	}
	if !m.about(x.question) || theirs == "" || ours == "" || ours == "=" {
		return false
	}
	if x.body && x.target == "/metrics" && len(m.keys) == 0 {
		return x.ours == absent && m.about(x.question) && slices.ContainsFunc(quoted.FindAllStringSubmatch(m.ours[x.mode], -1),
			func(p []string) bool { return like(p[1], x.key) })
	}
	if x.body {
		key := element.ReplaceAllString(x.key, "[]")
		return slices.ContainsFunc(m.keys, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) &&
			(theirs != absent || x.patroni == absent) && (ours != absent || x.ours == absent)
	}
	return statuses.MatchString(theirs) && statuses.MatchString(ours) &&
		strings.Contains(theirs, x.patroni) && strings.Contains(ours, x.ours)
}

// result is what one question brought to light.
type result struct {
	question

	state, mode   string
	node          string // row of the node that was asked, if the field is another's
	key           string // of the body
	patroni, ours string
	reason        string // pgsteer's
	id            string // of the manual's row that allows a difference
}

func (x result) equal() bool    { return x.patroni == x.ours }
func (x result) unlisted() bool { return !x.equal() && x.id == "" }

// listed looks a difference up in the manual.
func (d *diffRig) listed(x result) result {
	if x.equal() {
		return x
	}
	for _, m := range d.manual {
		if m.allows(x, d.v4) {
			x.id = m.id
			break
		}
	}
	return x
}

// judge reports what is not listed, and keeps everything for the table.
func (d *diffRig) judge(found []result) {
	d.t.Helper()
	d.results = append(d.results, found...)
	slices.SortFunc(found, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ref, b.ref), cmp.Compare(a.topic, b.topic))
	})
	for _, x := range found {
		if x.unlisted() {
			d.t.Errorf("%s: %s (%s), %s: Patroni %s, pgsteer %s (%s)", x.mode, x.ref, x.row, x.topic, x.patroni, x.ours, x.reason)
		}
	}
}
