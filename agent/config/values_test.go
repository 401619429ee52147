package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestSecretStaysSecret prints a secret in every way that logs and answers use.
func TestSecretStaysSecret(t *testing.T) {
	const text = "hunter2"
	c := Default()
	c.Postgres.Password, c.Consul.Token = NewSecret(text), NewSecret(text)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "secret", c.Consul.Token, "config", c)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "secret", c.Consul.Token, "config", c)
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Dump(map[string]any{"a": c, "b": c.Consul.Token})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join([]string{
		log.String(), string(asJSON), string(asYAML), fmt.Sprint(c.Consul.Token, *c),
		fmt.Sprintf("%v %+v %#v %s %q %x", c.Postgres, c.Postgres, c.Postgres, c.Postgres.Password, c.Postgres.Password, c.Postgres.Password),
	}, "\n")
	if strings.Contains(all, text) || strings.Contains(all, fmt.Sprintf("%x", text)) || !strings.Contains(all, "****") {
		t.Errorf("the secret shows, or nothing does:\n%s", all)
	}
	if c.Consul.Token.Reveal() != text || (Secret{}).String() != "" || !(Secret{}).Empty() {
		t.Error("Reveal, String or Empty is wrong")
	}
}

// A type that words forgets would take any text.
func TestWords(t *testing.T) {
	for _, v := range []any{
		LogLevel(""), LogFormat(""), SSLMode(""), Builtin(""),
		topology.AuthorityKind(""), topology.AuthorityLost(""), topology.Mode(""), topology.Fallback(""),
	} {
		if len(words(v)) == 0 {
			t.Errorf("%T has no words", v)
		}
	}
}

func TestListenAddress(t *testing.T) {
	for _, tt := range []struct{ in, want, fault string }{
		{"127.0.0.1:7431", "127.0.0.1:7431", ""},
		{"127.0.0.1:07431", "127.0.0.1:7431", ""},
		{":0", ":0", ""},
		{"[::]:80", "[::]:80", ""},
		{"0.0.0.0:80", "0.0.0.0:80", ""},
		{"localhost:80", "localhost:80", ""},
		{"off", "", ""},
		{"", "", ""},
		{"80", "", "is not host:port"},
		{"::1:80", "", "is not host:port"},
		{"[fe80::1%eth0]:80", "", "zone"},
		{"a b:80", "", "neither an IP address nor a DNS name"},
		{"a:65536", "", "is not a number"},
		{"a:-1", "", "is not a number"},
		{"a:http", "", "is not a number"},
	} {
		var a ListenAddress
		err := a.UnmarshalText([]byte(tt.in))
		if tt.fault == "" && (err != nil || string(a) != tt.want) || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%q: got %q, %v; want %q, %q", tt.in, a, err, tt.want, tt.fault)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		a, b ListenAddress
		want bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"127.0.0.1:1", ":1", true},
		{"[::]:1", "127.0.0.1:1", true},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"", "", false},
		{"", ":1", false},
	} {
		if got := tt.a.overlaps(tt.b); got != tt.want || tt.b.overlaps(tt.a) != tt.want {
			t.Errorf("%q and %q: overlap %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestFileMode(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want FileMode
		ok   bool
	}{
		{"0640", 0o640, true},
		{"600", 0o600, true},
		{"0666", 0, false},
		{"0040", 0, false},
		{"4755", 0, false},
		{"8", 0, false},
		{"0o640", 0, false},
		{"", 0, false},
	} {
		var m FileMode
		if err := m.UnmarshalText([]byte(tt.in)); (err == nil) != tt.ok || m != tt.want {
			t.Errorf("%q: got %v, %v", tt.in, m, err)
		}
	}
}

func TestLogLevel(t *testing.T) {
	for l, want := range map[LogLevel]slog.Level{"debug": -4, "info": 0, "warn": 4, "error": 8, "?": 0} {
		if got := l.Level(); got != want {
			t.Errorf("%s: got %v, want %v", l, got, want)
		}
	}
}

func TestClosest(t *testing.T) {
	known := []string{"nodes", "policy", "pools", "silent_after", "max_lag"}
	for word, want := range map[string]string{
		"nods": "nodes", "ndoes": "nodes", "NODES": "nodes", "silent-after": "silent_after", "silentafter": "silent_after",
		"maxlag": "max_lag", "x": "", "": "", "colour": "", strings.Repeat("nodes", 1000): "",
	} {
		if got := closest(word, known); got != want {
			t.Errorf("closest(%.20q) = %q, want %q", word, got, want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	f := Fault{File: "f", Line: 3, Column: 4, Text: "t", Source: "\tä: x"}
	compare(t, "    3 | \tä: x\n      | \t  ^\n", f.Excerpt())
}
