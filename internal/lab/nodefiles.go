package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tool runs one of PostgreSQL's programs.
func (n *Node) tool(ctx context.Context, name string, args ...string) (string, error) {
	return n.c.lab.run(ctx, spec{
		name: name + " for " + n.c.name + "/" + n.name, path: filepath.Join(n.c.bin, name), args: args, dir: n.dir, drop: true,
	})
}

// initdb makes an empty primary.
func (n *Node) initdb(ctx context.Context) error {
	pwfile := filepath.Join(n.dir, "pwfile")
	if err := n.c.lab.write(pwfile, n.c.passwords[Superuser]); err != nil {
		return err
	}
	defer os.Remove(pwfile)
	_, err := n.tool(ctx, "initdb", "-D", n.DataDir(), "-U", Superuser, "--pwfile", pwfile, "-A", "scram-sha-256",
		"-E", "UTF8", "--locale", "C", "--data-checksums", "--no-sync")
	if err != nil {
		return err
	}
	if err := n.c.lab.write(filepath.Join(n.DataDir(), "pg_hba.conf"), hba); err != nil {
		return err
	}
	return n.writeConf()
}

// hbaLines is hba without its comment, line by line.
func hbaLines() []string { return strings.Split(strings.TrimSpace(hba), "\n")[1:] }

const hba = `# type database user address method
local all         all               scram-sha-256
host  all         app  127.0.0.1/32 trust
host  all         all  127.0.0.1/32 scram-sha-256
host  replication all  127.0.0.1/32 scram-sha-256
`

// clone makes a standby of primary by pg_basebackup.
func (n *Node) clone(ctx context.Context, primary *Node) error {
	if err := os.RemoveAll(n.DataDir()); err != nil {
		return fmt.Errorf("lab: node %s: %w", n.name, err)
	}
	_, err := n.tool(ctx, "pg_basebackup", "-D", n.DataDir(), "-d", primary.DSN(Superuser),
		"--checkpoint=fast", "--wal-method=stream", "--no-sync")
	if err != nil {
		return err
	}
	return n.becomeStandby(primary)
}

// becomeStandby turns the data folder of a stopped node into one of a standby.
func (n *Node) becomeStandby(primary *Node) error {
	if err := n.writeConf(); err != nil {
		return err
	}
	auto := filepath.Join(n.DataDir(), "postgresql.auto.conf")
	b, err := os.ReadFile(auto)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab: node %s: %w", n.name, err)
	}
	// Of several lines with the same name the last one counts.
	text := string(b) + "primary_conninfo = " + quoteLiteral(n.conninfo(primary)) + "\n"
	if err := n.c.lab.write(auto, text); err != nil {
		return err
	}
	return n.c.lab.write(filepath.Join(n.DataDir(), "standby.signal"), "")
}

// conninfo is how the node reaches a primary.
func (n *Node) conninfo(primary *Node) string {
	return fmt.Sprintf("host=%s port=%d user=%s password=%s application_name=%s sslmode=disable",
		primary.Host(), primary.port, Superuser, n.c.passwords[Superuser], n.name)
}

// writeConf writes postgresql.conf anew: a copied data folder brings the file
// of another node. Logging stays as PostgreSQL ships it, except for the prefix.
func (n *Node) writeConf() error {
	settings := map[string]string{
		"cluster_name":            n.name,
		"fsync":                   "off",
		"hot_standby":             "on",
		"listen_addresses":        n.Host(),
		"log_line_prefix":         "%m [%p] %q%u@%d ",
		"max_wal_senders":         "20",
		"password_encryption":     "scram-sha-256",
		"port":                    strconv.Itoa(n.port),
		"shared_buffers":          "16MB",
		"unix_socket_directories": n.c.lab.sockets,
		"wal_keep_size":           "256MB",
		"wal_level":               "replica",
		"wal_log_hints":           "on",
		// How soon a standby tries again after its primary went away.
		"wal_retrieve_retry_interval": "200ms",
	}
	if n.c.authority != nil {
		settings["ssl"], settings["ssl_cert_file"], settings["ssl_key_file"] = "on", n.certFile(), n.keyFile()
	}
	maps.Copy(settings, n.c.settings)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = %s\n", k, quoteLiteral(settings[k]))
	}
	return n.c.lab.write(filepath.Join(n.DataDir(), "postgresql.conf"), b.String())
}

// The certificate lies beside the data folder, of which copies are made for others.
func (n *Node) certFile() string { return filepath.Join(n.dir, "server.crt") }
func (n *Node) keyFile() string  { return filepath.Join(n.dir, "server.key") }

// certify gives the node a certificate for its name, its address and more names.
func (n *Node) certify(names []string) error {
	if n.c.authority == nil {
		return nil
	}
	own, err := n.c.authority.Issue(append([]string{n.name, n.Host()}, names...)...)
	if err != nil {
		return err
	}
	return errors.Join(n.c.lab.write(n.certFile(), own.Cert), n.c.lab.write(n.keyFile(), own.Key))
}
