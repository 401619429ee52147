package topology

import "testing"

// TestAgreedRole: unknown gives way to what is known, and known words must agree.
func TestAgreedRole(t *testing.T) {
	for _, c := range []struct{ said, seen, want Role }{
		{RoleAny, RoleAny, RoleAsync},
		{RoleAny, RoleSync, RoleSync},
		{RoleQuorum, RoleAny, RoleQuorum},
		{RoleSync, RoleSync, RoleSync},
		{RoleSync, RoleAsync, RoleAsync},
		{RoleAsync, RoleSync, RoleAsync},
		{RoleSync, RoleQuorum, RoleAsync},
	} {
		if got := AgreedRole(c.said, c.seen); got != c.want {
			t.Errorf("said %q, seen %q: %q, want %q", c.said, c.seen, got, c.want)
		}
	}
}

// TestSyncRole: each side's own word.
func TestSyncRole(t *testing.T) {
	a := &Authority{SyncMode: "sync", SyncStandbys: []string{"b"}}
	q := &Authority{SyncMode: "quorum", SyncStandbys: []string{"b"}}
	p := &Probe{Standbys: []Standby{
		{Name: "b", State: "streaming", SyncState: "sync"}, {Name: "c", State: "catchup", SyncState: "sync"}, {Name: "d", State: "streaming", SyncState: "quorum"},
	}}
	for name, c := range map[string]struct{ got, want Role }{
		"no authority":      {(*Authority)(nil).SyncRole("b"), RoleAny},
		"it keeps no word":  {(&Authority{}).SyncRole("b"), RoleAny},
		"named":             {a.SyncRole("b"), RoleSync},
		"not named":         {a.SyncRole("c"), RoleAsync},
		"named for quorum":  {q.SyncRole("b"), RoleQuorum},
		"no view":           {(*Probe)(nil).SyncRole("b"), RoleAny},
		"seen":              {p.SyncRole("b"), RoleSync},
		"still catching up": {p.SyncRole("c"), RoleAsync},
		"seen in quorum":    {p.SyncRole("d"), RoleQuorum},
		"not seen":          {p.SyncRole("e"), RoleAsync},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
}
