package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/near"
)

// closest returns the one of the known words that was probably meant, empty
// when none is near: at most a third of the letters differ.
func closest(word string, known []string) string {
	best, found := max(1, len(word)/3)+1, ""
	for _, k := range known {
		if d := near.Distance(strings.ToLower(word), strings.ToLower(k)); d < best {
			best, found = d, k
		}
	}
	return found
}

// unknownKey explains a key that does not exist here; place says where it would
// stand, if anywhere. The second result is the key that was probably meant.
func unknownKey(key, place string, known []string) (text, meant string) {
	shown := quote(key)
	if slices.Contains(known, key+"_file") {
		return fmt.Sprintf("unknown key %s: secrets stand in files of their own, name one with `%s_file`", shown, key), key + "_file"
	}
	if place != "" {
		return fmt.Sprintf("unknown key %s here, it belongs %s", shown, place), ""
	}
	if meant = closest(key, known); meant != "" {
		return fmt.Sprintf("unknown key %s, did you mean `%s`?", shown, meant), meant
	}
	return fmt.Sprintf("unknown key %s, known here: %s", shown, list(known)), ""
}

// belongs says where a key stands that is unknown here and has one place only.
func belongs(key string) string {
	var places []string
	for _, k := range Keys() {
		if parent, ok := strings.CutSuffix(k.Path, "."+key); ok {
			places = append(places, "below `"+parent+"`")
		} else if k.Path == key {
			places = append(places, "at the top of the file")
		}
	}
	if len(places) != 1 {
		return ""
	}
	return places[0]
}

// UnknownWord explains a word that an enumeration or a list of names lacks, with
// the one that was probably meant.
func UnknownWord(word string, known []string) string {
	const most = 10
	if len(known) == 0 {
		return quote(word) + ", and there are none at all"
	}
	all := list(known[:min(most, len(known))])
	if len(known) > most {
		all += fmt.Sprintf(" and %d more", len(known)-most)
	}
	text := fmt.Sprintf("%s is none of %s", quote(word), all)
	if meant := closest(word, known); meant != "" {
		text += fmt.Sprintf("; did you mean `%s`?", meant)
	}
	return text
}

// quote shows a text of the file, shortened; it may be anything.
func quote(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '`' || r == 0x7f }) {
		return fmt.Sprintf("%q", s)
	}
	return "`" + s + "`"
}
