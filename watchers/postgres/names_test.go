package postgres

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
)

// TestNames: a name server's trouble keeps the last address, its answer does not.
func TestNames(t *testing.T) {
	var answer []string
	var fault error
	n := &names{lookup: func(context.Context, string) ([]string, error) { return answer, fault }}
	servfail := &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	steps := []struct {
		name   string
		answer []string
		fault  error
		want   []string
		fails  bool
	}{
		{"never known", nil, servfail, nil, true},
		{"known", []string{"192.0.2.12"}, nil, []string{"192.0.2.12"}, false},
		{"server fails", nil, servfail, []string{"192.0.2.12"}, false},
		{"deadline", nil, context.DeadlineExceeded, []string{"192.0.2.12"}, false},
		{"moved", []string{"192.0.2.112"}, nil, []string{"192.0.2.112"}, false},
		{"server fails again", nil, servfail, []string{"192.0.2.112"}, false},
		{"gone", nil, &net.DNSError{Err: "no such host", IsNotFound: true}, nil, true},
	}
	for _, s := range steps {
		answer, fault = s.answer, s.fault
		got, err := n.Lookup(t.Context(), "b.db.example.net")
		if !slices.Equal(got, s.want) || (err != nil) != s.fails || s.fails && !errors.Is(err, s.fault) {
			t.Errorf("%s: %v, %v; want %v", s.name, got, err, s.want)
		}
	}
	if _, err := n.Lookup(t.Context(), "other"); err == nil {
		t.Error("another name has the address of this one")
	}
}
