package config

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxText is the largest text that is parsed: thousands of clusters fit.
const maxText = 16 << 20

// ReadFile reads a regular file of at most 16 MB. A pipe would keep a reload
// waiting for its writer, and a device such as /dev/zero never ends.
func ReadFile(name string) ([]byte, error) {
	// Without O_NONBLOCK, opening a pipe would wait for its writer too.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", name)
	case info.Size() > maxText:
		return nil, fmt.Errorf("%s is larger than %s", name, topology.Size(maxText))
	}
	return io.ReadAll(io.LimitReader(f, maxText))
}

// Load reads a configuration from a file, opens the files that it names and
// takes the secrets from theirs. Relative paths are relative to the file's
// folder. Faults of content are *Faults; a file that cannot be read is the
// error of the operating system.
func Load(name string) (*Config, error) {
	text, err := ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	// Absolute, so that values mean the same wherever the agent stands later.
	folder, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return nil, fmt.Errorf("find the folder of the configuration %s: %w", name, err)
	}
	d := newDecoder(name, text)
	d.folder, d.open = folder, true
	return d.config(text)
}

// Parse reads a configuration from a text without touching the disk: files it
// names are not looked at and secrets stay empty. The name stands in faults,
// and relative paths are relative to its folder. Errors are *Faults.
func Parse(name string, text []byte) (*Config, error) {
	return newDecoder(name, text).config(text)
}

// FromNodes makes the configuration of one cluster named main without
// authority, from flags of the form name=host:port. Errors are *Faults whose
// file is the flag.
func FromNodes(nodes []string) (*Config, error) {
	d := newDecoder("--node", nil)
	c := defaultCluster("main", d.root.Postgres)
	for _, arg := range nodes {
		d.file = "--node " + arg
		name, text, _ := strings.Cut(arg, "=")
		err := topology.CheckName(name)
		n := topology.Node{Name: name}
		if err == nil {
			n.Address, err = topology.ParseAddress(text)
		}
		if err == nil && slices.ContainsFunc(c.Nodes, func(o topology.Node) bool { return o.Name == name }) {
			d.add(mark{}, fmt.Sprintf("node %s is given already", name))
			continue
		}
		if err != nil {
			d.add(mark{}, fmt.Sprintf("not name=host:port, such as a=10.0.0.1:5432: %v", err))
			continue
		}
		c.Nodes = append(c.Nodes, n)
	}
	d.file = "--node"
	c.Nodes.check(scope{d, ""}, "nodes")
	if len(nodes) == 0 {
		d.add(mark{}, "no node is given, name at least one: --node a=10.0.0.1:5432")
	}
	d.root.Clusters = Clusters{c}
	if err := d.err(); err != nil {
		return nil, err
	}
	return d.root, nil
}

// ParseInventory reads a file of nodes: the same map as a cluster's nodes. An
// empty map is an empty list; a file without any content is a fault, since it
// is more likely being written than meant. Errors are *Faults.
func ParseInventory(name string, text []byte) ([]topology.Node, error) {
	d := newDecoder(name, text)
	var nodes Nodes
	if doc := d.document(text); doc != nil {
		d.marks[""] = at(doc)
		nodes.decode(d, "", doc)
		nodes.check(scope{d, ""}, "")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return nodes, nil
}

func (d *decoder) config(text []byte) (*Config, error) {
	d.belongs = belongs
	doc := d.document(text)
	if doc != nil {
		d.marks[""] = at(doc)
		d.structure("", doc, reflect.ValueOf(d.root).Elem())
		d.secrets()
		d.root.check(scope{d, ""})
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return d.root, nil
}

// document parses the one YAML document of a text; nil after a fault.
func (d *decoder) document(text []byte) *yaml.Node {
	if at, why := badText(text); why != "" {
		d.add(at, why)
		return nil
	}
	var doc, second yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&doc)
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		d.add(mark{1, 1}, "the file says nothing")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		d.add(at(&second), "a second document begins here, a file holds one")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	return d.rootMap(doc.Content[0])
}

// rootMap wants a document to be a map; nil after a fault.
func (d *decoder) rootMap(root *yaml.Node) *yaml.Node {
	root = resolve(root)
	switch {
	case root.Kind == yaml.MappingNode:
		return root
	case isNull(root):
		d.add(mark{1, 1}, "the file says nothing")
	default:
		d.add(at(root), "the file is a map of keys and values, not a "+kindName(root))
	}
	return nil
}

// badText finds what the YAML library reports without a position.
func badText(text []byte) (mark, string) {
	if len(text) > maxText {
		return mark{1, 1}, fmt.Sprintf("the file has %d bytes, at most %d are read", len(text), maxText)
	}
	here := mark{1, 1}
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return here, "the file is not UTF-8"
		case r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f:
			return here, fmt.Sprintf("control character %U is not allowed", r)
		}
		i += size
		here.column++
		if r == '\n' || r == '\r' && (i == len(text) || text[i] != '\n') {
			here = mark{here.line + 1, 1}
		}
	}
	return mark{}, ""
}

// syntax records a fault that the parser found.
func (d *decoder) syntax(err error) {
	var all *yaml.LoadErrors
	var one *yaml.LoadError
	switch {
	case errors.As(err, &all) && len(all.Errors) > 0:
		one = all.Errors[0]
	case !errors.As(err, &one):
		d.add(mark{1, 1}, "not YAML: "+err.Error())
		return
	}
	text := "not YAML: " + strings.TrimPrefix(one.Message, "yaml: ")
	if one.ContextMsg != "" {
		text += " " + one.ContextMsg
	}
	if one.ContextMark.Line > 0 && one.ContextMark.Line != one.Mark.Line {
		text += fmt.Sprintf(" that begins in line %d", one.ContextMark.Line)
	}
	d.add(mark{max(one.Mark.Line, 1), max(one.Mark.Column, 1)}, text)
}

// secrets reads the files that hold passwords and tokens, each once, and the
// certificates that others are sent.
func (d *decoder) secrets() {
	if !d.open {
		return
	}
	d.secret("consul\x00token_file", d.root.Consul.TokenFile, &d.root.Consul.Token)
	d.secret("postgres\x00password_file", d.root.Postgres.PasswordFile, &d.root.Postgres.Password)
	d.roots("envoy\x00server_ca_file", d.root.Envoy.ServerCAFile, &d.root.Envoy.ServerCA)
	for i := range d.root.Clusters {
		c := &d.root.Clusters[i]
		d.secret(path("clusters").child(c.Name).child("pg_auto_failover").child("password_file"), c.Monitor.PasswordFile, &c.Monitor.Password)
		if c.Postgres.PasswordFile == d.root.Postgres.PasswordFile {
			c.Postgres.Password = d.root.Postgres.Password
			continue
		}
		p := path("clusters").child(c.Name).child("postgres").child("password_file")
		d.secret(p, c.Postgres.PasswordFile, &c.Postgres.Password)
	}
}

// roots reads a file of certificates.
func (d *decoder) roots(p path, name string, dst *string) {
	if name == "" || d.unsound[p] {
		return
	}
	b, err := ReadFile(name)
	switch {
	case err != nil:
		d.fault(p, d.marks[p], "this file must be readable: %v", err)
	case !x509.NewCertPool().AppendCertsFromPEM(b):
		d.fault(p, d.marks[p], "%s has no certificate in PEM", name)
	default:
		*dst = string(b)
	}
}

func (d *decoder) secret(p path, name string, dst *Secret) {
	if name == "" || d.unsound[p] {
		return
	}
	b, err := ReadFile(name)
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		d.fault(p, d.marks[p], "this file must be readable: %v", err)
	case text == "":
		d.fault(p, d.marks[p], "%s is empty, a secret was expected", name)
	case strings.ContainsAny(text, "\r\n\x00"):
		d.fault(p, d.marks[p], "%s holds more than one line, a secret is one", name)
	default:
		*dst = NewSecret(text)
	}
}
