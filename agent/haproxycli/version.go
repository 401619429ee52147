package haproxycli

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is a version of HAProxy. Zero: unknown.
type Version struct {
	Major, Minor, Patch int
	// Dev is the number of a development version of Major.Minor (3.5-dev2), which
	// comes before its first release; zero for a release.
	Dev int
}

// V is a release, for tables.
func V(major, minor, patch int) Version { return Version{Major: major, Minor: minor, Patch: patch} }

var versionText = regexp.MustCompile(`(?:^|[Vv]ersion )(\d+)\.(\d+)(?:\.(\d+)|-dev(\d+))?`)

// ParseVersion reads the version of "show info" ("2.6.12-1+deb12u4"), or the first
// line of `haproxy -v`. What a distribution appends is left out.
func ParseVersion(s string) (Version, bool) {
	m := versionText.FindStringSubmatch(s)
	if m == nil {
		return Version{}, false
	}
	var n [4]int
	for i := range n {
		if text := m[i+1]; text != "" {
			v, err := strconv.Atoi(text)
			if err != nil {
				return Version{}, false
			}
			n[i] = v
		}
	}
	return Version{n[0], n[1], n[2], n[3]}, true
}

// Compare orders versions: a development version comes before its release.
func (v Version) Compare(o Version) int {
	release := func(v Version) int {
		if v.Dev == 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor),
		cmp.Compare(release(v), release(o)), cmp.Compare(v.Dev, o.Dev), cmp.Compare(v.Patch, o.Patch))
}

// Before reports whether v is older than o.
func (v Version) Before(o Version) bool { return v.Compare(o) < 0 }

// String writes major.minor.patch.
func (v Version) String() string {
	switch {
	case v == Version{}:
		return "unknown"
	case v.Dev != 0:
		return fmt.Sprintf("%d.%d-dev%d", v.Major, v.Minor, v.Dev)
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}
