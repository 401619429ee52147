//go:build !race

package mesh

// underRace: the race detector makes a fleet ten times as slow.
const underRace = false
