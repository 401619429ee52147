package apply

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// places are the paths that a command may name.
type places struct {
	destinations []string
	staged       []string // nil: nothing is staged any more
}

func (g Group) places(staged []string) places {
	p := places{staged: staged}
	for _, f := range g.Files {
		p.destinations = append(p.destinations, f.Destination)
	}
	return p
}

var placeholder = regexp.MustCompile(`\{\{.*?(\}\}|$)`)

var known = regexp.MustCompile(`^\{\{ *\.(Staged|Destination)(?: +([0-9]{1,3}))? *\}\}$`)

// expand replaces the placeholders of an argument list. An unknown one is an
// error, since a command that gets it literally would fail at the worst moment.
func (p places) expand(args []string) ([]string, error) {
	out := slices.Clone(args)
	for i, arg := range args {
		var fault error
		out[i] = placeholder.ReplaceAllStringFunc(arg, func(s string) string {
			path, err := p.lookup(s)
			if err != nil {
				fault = err
			}
			return path
		})
		if fault != nil {
			return nil, fmt.Errorf("argument %d, %q: %w", i+1, arg, fault)
		}
	}
	if len(out) > 0 && strings.TrimSpace(out[0]) == "" {
		return nil, fmt.Errorf("the program's name is empty")
	}
	return out, nil
}

func (p places) lookup(s string) (string, error) {
	m := known.FindStringSubmatch(s)
	if m == nil {
		return "", fmt.Errorf("%s is neither {{.Staged}} nor {{.Destination}}", s)
	}
	paths := p.destinations
	if m[1] == "Staged" {
		paths = p.staged
		if paths == nil {
			return "", fmt.Errorf("%s is gone by then, use {{.Destination}}", s)
		}
	}
	n := 1
	if m[2] != "" {
		n, _ = strconv.Atoi(m[2])
	}
	if n < 1 || n > len(paths) {
		return "", fmt.Errorf("%s: the group has %d files", s, len(paths))
	}
	return paths[n-1], nil
}
