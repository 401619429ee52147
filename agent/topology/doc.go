// Package topology holds the values that every other package speaks in: what
// was seen (Observation), what was decided (Snapshot), what lies beside a
// decision and changes all the time (Facts), and the small types they are made
// of (LSN, Size, Address, Tri, Reason).
//
// Guarantees: the package imports nothing outside the standard library, does no
// I/O, starts no goroutine and reads no clock. Values that have been published
// (Snapshot, Facts, View) are never changed afterwards; copy before you edit.
// Zero values mean "unknown", never "healthy".
package topology
