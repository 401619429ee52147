package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Selector chooses nodes by their tags: every term must hold. The zero value
// chooses all.
type Selector struct {
	terms []term
}

type term struct {
	key    string
	op     string // "set", "unset", "in", "notin"
	values []string
}

// ParseSelector reads terms with commas between: key=value, key!=value, key (is
// set and not false), !key, key in (a, b), key notin (a, b). The forms are those
// of Kubernetes' label selectors. A tag that is absent differs from every value.
func ParseSelector(s string) (Selector, error) {
	var sel Selector
	for _, part := range splitTerms(s) {
		t, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return Selector{}, fmt.Errorf("selector %q: %w", s, err)
		}
		sel.terms = append(sel.terms, t)
	}
	return sel, nil
}

// Names reports whether a term speaks of a tag.
func (s Selector) Names(tag string) bool {
	return slices.ContainsFunc(s.terms, func(t term) bool { return t.key == tag })
}

// splitTerms cuts at commas that stand outside of parentheses.
func splitTerms(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var parts []string
	depth, from := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts, from = append(parts, s[from:i]), i+1
			}
		}
	}
	return append(parts, s[from:])
}

func parseTerm(s string) (term, error) {
	if key, list, ok := cutSet(s); ok {
		return setTerm(key, list)
	}
	op, at := "in", strings.IndexByte(s, '=')
	key, value := s, ""
	switch {
	case at > 0 && s[at-1] == '!':
		op, key, value = "notin", s[:at-1], s[at+1:]
	case at >= 0:
		key, value = s[:at], strings.TrimPrefix(s[at+1:], "=")
	case strings.HasPrefix(s, "!"):
		op, key = "unset", s[1:]
	default:
		op = "set"
	}
	t := term{key: strings.TrimSpace(key), op: op}
	if err := checkTag(t.key); err != nil {
		return term{}, err
	}
	if at >= 0 {
		if strings.ContainsAny(value, "=!()") {
			return term{}, fmt.Errorf("%q has more than one operator", s)
		}
		t.values = []string{strings.TrimSpace(value)}
	}
	return t, nil
}

// cutSet cuts "key in (a, b)" into the key with its operator and the list.
func cutSet(s string) (left, list string, ok bool) {
	left, rest, ok := strings.Cut(s, "(")
	if !ok {
		return "", "", false
	}
	return left, rest, true
}

func setTerm(left, list string) (term, error) {
	list, ok := strings.CutSuffix(strings.TrimSpace(list), ")")
	words := strings.Fields(left)
	if !ok || len(words) != 2 || words[1] != "in" && words[1] != "notin" || strings.ContainsAny(list, "()") {
		return term{}, fmt.Errorf("%q is not like: zone in (a, b)", left+"("+list)
	}
	if err := checkTag(words[0]); err != nil {
		return term{}, err
	}
	t := term{key: words[0], op: words[1]}
	if strings.ContainsAny(list, "=!") {
		return term{}, fmt.Errorf("%q: a value has ! or =", left+"("+list)
	}
	for v := range strings.SplitSeq(list, ",") {
		t.values = append(t.values, strings.TrimSpace(v))
	}
	return t, nil
}

func checkTag(key string) error {
	if key == "" {
		return fmt.Errorf("a term has no tag")
	}
	if i := strings.IndexAny(key, " \t\n\r,=!()"); i >= 0 {
		return fmt.Errorf("tag %q: %q is not allowed in a tag's name", key, key[i])
	}
	return nil
}

// Matches reports whether a node is chosen.
func (s Selector) Matches(n Node) bool {
	for _, t := range s.terms {
		value, has := n.Tags[t.key]
		var ok bool
		switch t.op {
		case "set":
			ok = n.HasTag(t.key)
		case "unset":
			ok = !n.HasTag(t.key)
		case "in":
			ok = has && slices.Contains(t.values, value)
		default:
			ok = !has || !slices.Contains(t.values, value)
		}
		if !ok {
			return false
		}
	}
	return true
}

// String writes the selector as ParseSelector reads it.
func (s Selector) String() string {
	var parts []string
	for _, t := range s.terms {
		switch {
		case t.op == "set":
			parts = append(parts, t.key)
		case t.op == "unset":
			parts = append(parts, "!"+t.key)
		case len(t.values) == 1 && t.op == "in":
			parts = append(parts, t.key+"="+t.values[0])
		case len(t.values) == 1:
			parts = append(parts, t.key+"!="+t.values[0])
		default:
			parts = append(parts, t.key+" "+t.op+" ("+strings.Join(t.values, ", ")+")")
		}
	}
	return strings.Join(parts, ", ")
}

// MarshalText writes String.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what ParseSelector reads.
func (s *Selector) UnmarshalText(b []byte) error {
	v, err := ParseSelector(string(b))
	if err != nil {
		return err
	}
	*s = v
	return nil
}
