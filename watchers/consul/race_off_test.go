//go:build !race

package consul

const raceDetector = false
