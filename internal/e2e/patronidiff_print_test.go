package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// columns of the table that print writes: endpoints that Patroni answers by the same
// rule, those of others, and all paths that are no endpoints.
var columns = []string{
	"P", "L", "SL", "R", "RO", "ROS", "S", "A", "Q", "ROQ", "H", "RD",
	"/liveness", "/patroni", "/cluster", "/history", "/config", "/metrics", "/failsafe", "other",
}

// column is where a question belongs.
func (q question) column() string {
	path, _, _ := strings.Cut(q.target, "?")
	for name, paths := range groups {
		if slices.Contains(paths, path) {
			return name
		}
	}
	if slices.Contains(others, path) {
		return path
	}
	return "other"
}

// line is a line of the table: what was found in a state at the nodes of a row.
type line struct {
	title string
	cells map[string]string // by column and mode
	ids   map[string]int    // how often a row of the manual was needed
}

// The marks of a cell, from good to bad.
const marks = ".=l!" // not asked, equal, differs as the manual lists, UNLISTED

// add has a cell show a result, if that is worse than what it shows.
func (l *line) add(x result) {
	mark := "="
	switch {
	case x.unlisted():
		mark = "!"
	case !x.equal():
		mark = "l"
		l.ids[x.id]++
	}
	at := x.column() + " " + x.mode
	if strings.Index(marks, mark) > strings.Index(marks, cmp.Or(l.cells[at], ".")) {
		l.cells[at] = mark
	}
}

// lines sorts the results into lines, in the order in which they were found.
func lines(found []result) (all []*line) {
	for _, x := range found {
		title := fmt.Sprintf("%-44s %-12s", x.state, cmp.Or(x.node, x.row))
		i := slices.IndexFunc(all, func(l *line) bool { return l.title == title })
		if i < 0 {
			i = len(all)
			all = append(all, &line{title: title, cells: map[string]string{}, ids: map[string]int{}})
		}
		all[i].add(x)
	}
	return all
}

// printTable writes the comparison as a table of states and endpoints.
func printTable(t *testing.T, modes []string, found []result) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%-57s", "state and row")
	for _, c := range columns {
		fmt.Fprintf(&b, " %-3.3s", strings.TrimPrefix(c, "/"))
	}
	b.WriteString(" listed as\n")
	ids := map[string]int{}
	for _, l := range lines(found) {
		b.WriteString(l.title)
		for _, c := range columns {
			cell := ""
			for _, m := range modes {
				cell += cmp.Or(l.cells[c+" "+m], ".")
			}
			fmt.Fprintf(&b, " %-3s", cell)
		}
		fmt.Fprintf(&b, " %s\n", strings.Join(slices.Sorted(maps.Keys(l.ids)), " "))
		for id, n := range l.ids {
			ids[id] += n
		}
	}
	b.WriteString("differences by the rows of the manual:")
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		fmt.Fprintf(&b, " %s %d", id, ids[id])
	}
	equal, unlisted := 0, 0
	for _, x := range found {
		if x.equal() {
			equal++
		} else if x.unlisted() {
			unlisted++
		}
	}
	t.Logf("%d answers equal, %d differences listed, %d UNLISTED; a cell is %s: = equal, l listed, ! UNLISTED, . not asked\n%s",
		equal, len(found)-equal-unlisted, unlisted, strings.Join(modes, " and "), b.String())
}
