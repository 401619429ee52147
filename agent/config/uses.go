package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// SetProbeRole sets the role that every cluster is probed as, and the file with
// its password ("" for none), as the flags of a run without a file do.
func (c *Config) SetProbeRole(user, passwordFile string) error {
	var password Secret
	if passwordFile != "" {
		path, err := filepath.Abs(passwordFile)
		if err != nil {
			return fmt.Errorf("find the password file %s: %w", passwordFile, err)
		}
		b, err := ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the password of role %s: %w", user, err)
		}
		passwordFile, password = path, NewSecret(strings.TrimRight(string(b), "\r\n"))
	}
	for i := range c.Clusters {
		p := &c.Clusters[i].Postgres
		p.User, p.PasswordFile, p.Password = user, passwordFile, password
	}
	return nil
}

// Mode is the mode for the operating system.
func (m FileMode) Mode() fs.FileMode { return fs.FileMode(m) }
