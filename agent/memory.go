package agent

import "runtime/debug"

// gcPercent is the agent's GOGC, unless the environment has one. Almost all of its
// memory is what it knows of each node and keeps for good, of which Go's default of
// 100 would let the process take twice as much, for a few hundredths of a core less
// (BenchmarkFleet).
const gcPercent = 50

// boundGarbage sets it for this process.
func boundGarbage(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
