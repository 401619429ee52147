// Package config turns one YAML file into the values that the agent runs on.
//
// Guarantees: a file is taken whole or not at all. All faults of a file are
// reported at once, each with the line and column it stands at, be it a fault
// of form (an unknown or repeated key, a bare number for a duration) or of
// sense (a kill_after below silent_after). Every value that the file leaves out
// holds its default before decoding begins, so nothing is optional by pointer.
// Parse touches no disk and never panics, whatever the text; only Load opens
// the files that a configuration names. Secrets come from files alone, and the
// type that holds one prints as ****.
//
// The package knows YAML so that nobody else has to: Decode reads other files,
// such as scenarios, by the same rules. Keys, defaults and their reasons stand
// in docs/configuration.md; tests keep that page complete, and Schema, which
// editors use, the same as it.
package config
