package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseAgentCheck(t *testing.T) {
	c, err := Parse("/etc/pgsteer/pgsteer.yaml", []byte(`
listen: {socket: run/pgsteer.sock, socket_mode: 0660}
agent_check:
  admin_words: always
  ports:
    - {listen: 127.0.0.1:7441, server: main/primary/n1}
    - {listen: 127.0.0.1:7442, server: main/primary/!guard}
    - {listen: 127.0.0.1:7443, server: other/primary/whoever}
clusters:
  main: {nodes: {n1: 10.0.0.1:5432}}
  other: {authority: patroni}
`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, AgentCheck{AdminWords: AdminAlways, Ports: []AgentCheckPort{
		{"127.0.0.1:7441", ServerRef{"main", "primary", "n1"}},
		{"127.0.0.1:7442", ServerRef{"main", "primary", "!guard"}},
		{"127.0.0.1:7443", ServerRef{"other", "primary", "whoever"}},
	}}, c.AgentCheck)
	compare(t, SocketMode(0o660), c.Listen.SocketMode)
	compare(t, AgentCheck{AdminWords: AdminNever}, Default().AgentCheck)
}

// Where the agent's socket is: where the file says, else where systemd made a
// folder for it, else nowhere.
func TestStatusSocket(t *testing.T) {
	for _, tt := range []struct{ yaml, runtime, want string }{
		{"{}", "", ""},
		{"{}", "/run/pgsteer", DefaultSocket},
		{"{}", "/run/a:/run/b", "/run/a/pgsteer.sock"},
		{"{socket: /run/x.sock}", "/run/pgsteer", "/run/x.sock"},
		{"{socket: x.sock}", "", "/etc/pgsteer/x.sock"},
		{"{socket: off}", "/run/pgsteer", ""},
	} {
		c, err := Parse("/etc/pgsteer/pgsteer.yaml", []byte("clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}\nlisten: "+tt.yaml))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.StatusSocket(func(string) string { return tt.runtime }); got != tt.want {
			t.Errorf("%s with RUNTIME_DIRECTORY=%s: %q, want %q", tt.yaml, tt.runtime, got, tt.want)
		}
	}
	_, err := Parse("c", []byte("listen: {socket: /"+strings.Repeat("x", 107)+"}\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}}}"))
	if err == nil || !strings.Contains(err.Error(), "at most 107 are possible") {
		t.Errorf("a path that no socket can have: %v", err)
	}
}

// Files finds every file, wherever it is named.
func TestFiles(t *testing.T) {
	c := Default()
	c.Consul.TokenFile, c.Postgres.SSLRootCert, c.Listen.HealthTLS.KeyFile = "/t", "/r", "/k"
	c.Clusters = Clusters{{Patroni: Patroni{CAFile: "/ca"}}, {Postgres: Postgres{PasswordFile: "/pw"}}}
	c.Templates = []Template{{Files: []File{{Source: "/s", Destination: "/no"}}}}
	compare(t, []FileUse{
		{"key_file", "/k"}, {"token_file", "/t"}, {"sslrootcert", "/r"}, {"ca_file", "/ca"}, {"password_file", "/pw"}, {"source", "/s"},
	}, c.Files())
}

// The examples' configurations are good as they stand.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/pgsteer*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(file, text); err != nil {
			t.Error(err)
		}
	}
}
