package file

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxSize bounds an inventory: some ten thousand nodes.
const maxSize = 1 << 20

// read looks at the file once. It returns false when a second read must confirm
// what was found.
func (s *Source) read() bool {
	asked := s.o.Now()
	text, err := readFile(s.o.Path)
	if err != nil {
		s.candidate = nil
		s.failed(asked, err)
		return true
	}
	sum := sha256.Sum256(text)
	if bytes.Equal(sum[:], s.accepted) && s.fault == "" {
		s.candidate = nil
		return true
	}
	if !bytes.Equal(sum[:], s.candidate) {
		s.candidate = sum[:]
		return false
	}
	nodes, err := s.parse(text)
	if err != nil {
		s.failed(asked, err)
		return true
	}
	s.accepted, s.candidate, s.fault = sum[:], nil, ""
	s.o.Logger.Info("list of nodes read", "nodes", len(nodes))
	s.emit(topology.Observation{AskedAt: asked, Nodes: &topology.NodeList{Nodes: nodes}})
	return true
}

func (s *Source) parse(text []byte) ([]topology.Node, error) {
	nodes, err := s.o.Parse(s.o.Path, text)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%s lists no node", s.o.Path)
	}
	return nodes, check(nodes)
}

// failed reports why the file says nothing now.
func (s *Source) failed(asked topology.Clock, err error) {
	text := err.Error() + "; the nodes known so far stay, and the file is read again"
	if text != s.fault {
		s.o.Logger.Warn("list of nodes cannot be used", "error", err)
	}
	s.fault = text
	s.emit(topology.Observation{AskedAt: asked, Failure: &topology.Failure{Class: topology.FailContent, Text: text}})
}

func readFile(path string) ([]byte, error) {
	// Asked before the file is opened: to open a pipe would wait for its writer.
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("reading the list of nodes: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the list of nodes: %s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the list of nodes: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the list of nodes: %w", err)
	case len(text) > maxSize:
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s is empty", path)
	}
	return text, nil
}

// check refuses names and addresses that must not reach a balancer, and two
// nodes that are one.
func check(nodes []topology.Node) error {
	names, addresses := make(map[string]bool), make(map[topology.Address]string)
	for _, n := range nodes {
		if err := topology.CheckName(n.Name); err != nil {
			return err
		}
		if err := n.Address.Check(); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if names[n.Name] {
			return fmt.Errorf("node %s is listed twice", n.Name)
		}
		if other, ok := addresses[n.Address]; ok {
			return fmt.Errorf("nodes %s and %s have the same address %s", other, n.Name, n.Address)
		}
		names[n.Name], addresses[n.Address] = true, n.Name
	}
	return nil
}
