package topology

import (
	"fmt"
	"slices"
	"strings"
)

// CheckLabel reports why s cannot be a label of a DNS name, as names of services
// and their tags must be that are asked for by DNS.
func CheckLabel(s string) error {
	bad := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' || strings.ContainsFunc(s, bad) {
		return fmt.Errorf("%.70q cannot be asked for by DNS: a label is 1 to 63 lower-case letters, digits and dashes, with no dash at an end", s)
	}
	return nil
}

// ZoneTag begins the tag of a service's instance that tells its zone: a zone may be
// called primary.
const ZoneTag = "zone-"

// roleTags are tags of a service's instance that tell what was found out of it.
var roleTags = []string{"primary", "master", "replica", string(RoleStandbyLeader), string(RoleSync), string(RoleQuorum), string(RoleAsync)}

// CheckServiceTag reports why s cannot be a tag of the user's own on a service.
func CheckServiceTag(s string) error {
	if slices.Contains(roleTags, s) || strings.HasPrefix(s, ZoneTag) {
		return fmt.Errorf("tag %s tells what pgsteer has found out and cannot be one of your own", s)
	}
	return CheckLabel(s)
}
