// Package resources turns a decision into what Envoy reads: for every pool of a
// cluster an Envoy cluster, its endpoints and, where the operator gave an
// address, a TCP listener.
//
// Guarantees: [Build] is pure and deterministic. It reads no clock and keeps
// nothing between calls, so the same decision gives the same bytes in every
// process, which is what lets an Envoy keep its sessions over a restart of
// pgsteer. Reasons, lags, ages and generations leave no trace in the bytes;
// only verdicts, weights, addresses and the identity of the writer do.
//
// The address of an endpoint is the one of the pool's verdict: a pool may have a
// port of its own, such as a PgBouncer's.
//
// Clients that say in which zone they are get a read pool's nodes of that zone at a
// first priority and all others at a second. For clients in gRPC each pool has an
// [API].
//
// What becomes of sessions whose node leaves a pool is a pool's [Sessions]. By
// default a write pool's listener carries the writer's name in its filter chain.
// A change of writer therefore renames the chain, and an Envoy that was started
// with --drain-time-s 0 ends every session of that listener at once. Nothing
// else may change in a listener while the writer stays, since any difference
// cuts sessions just the same.
package resources
