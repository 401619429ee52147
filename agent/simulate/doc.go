// Package simulate answers "what would pgsteer do if …": it plays a scenario, a
// YAML file that tells how a cluster changes, against the rules that the agent
// runs, under a clock that moves only here, and checks what the file expects.
//
// Guarantees:
//
//   - The rules, the parser of Patroni's keys, and what the balancers are told
//     are those of the agent itself. Only the servers and the watchers are
//     played; the watchers keep the paces of the real ones.
//   - Nothing outside is read, asked or written but the scenario's own file.
//   - The same file gives the same result, byte by byte, always.
//   - Every fault of a file is reported at once, each with its line and column.
//
// docs/simulate.md is the manual of the format.
package simulate
