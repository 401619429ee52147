// Package engine decides which node of a cluster takes writes and reads.
//
// Two pure functions do all the work. Observe folds one observation into a
// State; Decide reads the State, applies the rules (a file each) and returns an
// immutable Snapshot. Neither reads a clock, does I/O or starts a goroutine: the
// same observations and clock readings give the same snapshots on every agent.
//
// What always holds (design.md section 4):
//
//   - a write pool has at most one node up;
//   - a node enters a write pool only when the authority names it and its own
//     newest SQL evidence says that it is writable; with authority none only
//     alone on the highest timeline ever seen;
//   - it leaves at the first contrary evidence, and comes back only by entering
//     again; silence drains it first;
//   - a failed probe may worsen a verdict, never improve it, and every fact expires;
//   - all rules of time are durations: asking more often never decides hastier.
//
// A State belongs to one goroutine.
package engine
