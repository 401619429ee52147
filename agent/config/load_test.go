package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		full := filepath.Join(dir, name)
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return full
	}
	write("password", "shared\n")
	write("other", "own secret\r\n")
	write("token", "t0ken")
	file := write("pgsteer.yaml", `
consul: {token_file: token}
postgres: {password_file: password}
clusters:
  a: {authority: patroni}
  b: {authority: patroni, postgres: {password_file: other}}
  c: {authority: patroni, postgres: {password_file: ""}}
`)
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Consul.Token.Reveal()}
	for _, cl := range c.Clusters {
		got = append(got, cl.Postgres.Password.Reveal())
	}
	compare(t, []string{"t0ken", "shared", "own secret", ""}, got)
}

func TestLoadFaults(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "\n", "lines": "a\nb\n", "no.pem": "nothing\n",
		"pgsteer.yaml": `consul: {address: "https://c:8501", token_file: missing, ca_file: "."}
postgres: {password_file: empty, sslrootcert: gone.crt}
clusters:
  a: {authority: patroni, postgres: {password_file: lines}, inventory: not-there-yet.yaml}
templates:
  - {name: t, files: [{source: none.tmpl, destination: out}]}
  - {name: u, files: [{source: none.tmpl, builtin: pgbouncer, destination: none.tmpl}], roles: true, pgbouncer: a}
envoy: {server_ca_file: no.pem}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "pgsteer.yaml")
	_, err := Load(file)
	if _, ok := errors.AsType[*Faults](err); !ok {
		t.Fatalf("got %v, want *Faults", err)
	}
	got := strings.ReplaceAll(err.Error(), dir+"/", "")
	want := `pgsteer.yaml:1:49: this file must be readable: open missing: no such file or directory
pgsteer.yaml:1:67: this file must be readable: ` + dir + ` is a folder
pgsteer.yaml:2:27: empty is empty, a secret was expected
pgsteer.yaml:2:47: this file must be readable: open gone.crt: no such file or directory
pgsteer.yaml:4:53: lines holds more than one line, a secret is one
pgsteer.yaml:6:32: this file must be readable: open none.tmpl: no such file or directory
pgsteer.yaml:7:32: this file must be readable: open none.tmpl: no such file or directory
pgsteer.yaml:7:32: builtin and source exclude each other
pgsteer.yaml:7:76: the destination is the template itself
pgsteer.yaml:7:113: no such PgBouncer: ` + "`a`" + `, and there are none at all
pgsteer.yaml:8:25: no.pem has no certificate in PEM`
	compare(t, want, got)

	if _, err := Load(filepath.Join(dir, "nothing.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: got %v", err)
	}
}
