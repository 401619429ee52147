package watchers

// Clip keeps the beginning of a foreign text on one line, for a failure's text.
func Clip(s string) string {
	const most = 160
	out := make([]rune, 0, most)
	for _, r := range s {
		if len(out) == most {
			return string(out) + "…"
		}
		if r < ' ' {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
