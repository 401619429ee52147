package doctor

import (
	"context"
	"errors"
	"testing"
)

func TestReloadUnit(t *testing.T) {
	const yaml = `templates:
  - {name: a, files: [{builtin: haproxy, destination: /x/a}], check: [haproxy, "{{.Staged}}"], reload_unit: haproxy.service}
  - {name: b, files: [{builtin: haproxy, destination: /x/b}], check: [haproxy, "{{.Staged}}"], reload_unit: haproxy.service}`
	for _, tt := range []struct {
		unit Unit
		err  error
		want string
	}{
		{Unit{"loaded", "active", true, true}, nil, "OK haproxy.service: it can be reloaded, by root"},
		{Unit{"loaded", "active", true, false}, nil, "WARN haproxy.service: it can be reloaded; whether this user may cannot be found out without doing it"},
		{Unit{"loaded", "failed", true, true}, nil, "WARN haproxy.service: it is failed: there is nothing to reload"},
		{Unit{"loaded", "active", false, true}, nil, "FAIL haproxy.service: it cannot be reloaded"},
		{Unit{"not-found", "inactive", false, true}, nil, `FAIL haproxy.service: its state is "not-found": systemd has no such unit, or cannot read it`},
		{Unit{}, errors.New("no bus"), "FAIL haproxy.service: no bus"},
	} {
		o := options(t, yaml)
		o.Unit = func(context.Context, string) (Unit, error) { return tt.unit, tt.err }
		same(t, of(t, "reload-unit", o), tt.want) // once for both
	}
	o := options(t, "")
	o.Unit = func(context.Context, string) (Unit, error) { panic("nothing is reloaded by systemd") }
	same(t, of(t, "reload-unit", o))
}
