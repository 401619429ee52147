// Package rules holds the rules of this repository that a compiler does not
// check, as tests: who may import whom, that every package says what it
// guarantees, and that pages name tests, scenarios and settings that exist.
package rules
