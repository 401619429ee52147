package doctor

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write prints results as a table, each trouble with what was tried and what to do
// (statements each on lines of their own), and a last line that counts them.
func Write(w io.Writer, results []Result) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	count := map[Level]int{}
	for _, r := range results {
		count[r.Level]++
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Level, r.Check, oneLine(r.Subject), oneLine(r.Found))
		if r.Level != OK {
			fmt.Fprintf(t, "\t\t\ttried: %s\n", oneLine(r.Tried))
			first := "do: "
			for line := range strings.SplitSeq(r.Do, "\n") {
				fmt.Fprintf(t, "\t\t\t%s%s\n", first, strings.ReplaceAll(line, "\t", " "))
				first = "  "
			}
		}
	}
	_ = t.Flush() // into memory
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d OK, %d WARN, %d FAIL\n", count[OK], count[Warn], count[Fail])
	return err
}

// oneLine keeps texts of others from breaking the table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
