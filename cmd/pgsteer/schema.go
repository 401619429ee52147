package main

import "github.com/pgsteer/pgsteer/agent/config"

type schemaCmd struct{}

// Run prints the schema of the configuration file.
func (schemaCmd) Run(std streams) error {
	_, err := std.out.Write(config.Schema())
	return err
}
