package simulate

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// WriteText writes a result as a table of what changed and when, followed by
// the expectations that failed and a line with their number.
func WriteText(w io.Writer, r *Result) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, r.File)
	if r.About != "" {
		fmt.Fprintln(b, printable(r.About))
	}
	fmt.Fprintln(b)
	pool, node := 0, 0
	for _, e := range r.Events {
		pool, node = max(pool, len(e.Pool)), max(node, len(e.Node))
	}
	for _, e := range r.Events {
		if e.Pool == "" {
			fmt.Fprintf(b, "%10s  -- %s\n", e.At, printable(e.Note))
			continue
		}
		fmt.Fprintf(b, "%10s  %-*s  %-*s  %-9s  %s\n", e.At, pool, e.Pool, node, e.Node, verdictWord(e), reasonWords(e))
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return WriteFailures(w, r)
}

// WriteFailures writes the expectations that failed, and a line with their number.
func WriteFailures(w io.Writer, r *Result) error {
	b := bufio.NewWriter(w)
	if len(r.Failures) > 0 {
		fmt.Fprintln(b)
	}
	for _, f := range r.Failures {
		fmt.Fprintln(b, printable(f.String()))
	}
	word := "expectations"
	if r.Expectations == 1 {
		word = "expectation"
	}
	fmt.Fprintf(b, "\n%s: %d %s, %d failed\n", r.File, r.Expectations, word, len(r.Failures))
	return b.Flush()
}

// WriteJSON writes results as one JSON list.
func WriteJSON(w io.Writer, all []*Result) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

func verdictWord(e Event) string {
	switch {
	case e.Verdict == nil:
		return "gone"
	case e.Weight > 0:
		return e.Verdict.String() + " " + strconv.Itoa(e.Weight) + "%"
	}
	return e.Verdict.String()
}

func reasonWords(e Event) string {
	if e.Verdict == nil {
		return "not listed any more"
	}
	return string(e.Reason) + ": " + cmp.Or(printable(e.Text), "-")
}

// printable writes what a terminal could obey, or would not show, as Go does:
// an escape as \x1b. Line breaks and tabs stay.
func printable(s string) string {
	var b strings.Builder
	for _, c := range s {
		if unicode.IsPrint(c) || c == '\n' || c == '\t' {
			b.WriteRune(c)
			continue
		}
		quoted := strconv.QuoteRune(c)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

func sorted(all []string) []string { return slices.Sorted(slices.Values(all)) }
