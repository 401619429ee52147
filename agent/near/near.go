// Package near tells how far two words are apart, to name what was probably meant.
package near

// Distance counts the insertions, deletions, replacements and swaps of neighbours
// that turn one word into the other (optimal string alignment). Of words whose
// lengths differ by more than 20 it returns the longer one's length at once:
// nobody mistypes so much, and long words stay cheap.
func Distance(a, b string) int {
	if d := len(a) - len(b); d > 20 || d < -20 {
		return max(len(a), len(b))
	}
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
