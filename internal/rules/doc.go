// Package rules holds the rules of this repository that a compiler does not
// check, as tests: who may import whom, and that every package says what it
// guarantees.
package rules
