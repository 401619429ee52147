// Package xds serves decisions to Envoy: one aggregated discovery service, both
// protocols (state of the world and delta), over gRPC.
//
// Guarantees: on every stream a pool's new endpoints leave before its renamed
// listener, so that a client whose session is cut cannot reach the old writer
// again. Versions are content hashes without counters or times, the same in
// every agent and after every restart. A name asked for is always answered. What
// Envoy refused is not sent again until it changed. A role change leaves at
// once; other changes settle first, and a decision that is older than what is
// served of its cluster is not served.
//
// A listener that stands is kept to the byte until its writer changes or the
// operator releases it, over restarts and upgrades: every difference in one ends
// its sessions. An Envoy with a certificate is the node that this names and no
// other. What is served can be written into files too, of which only those move
// in which something changed.
//
// A client that says in which zone it is gets that zone's nodes first. What gRPC
// clients need is there for those who ask for it by name, and no wildcard shows it.
//
// Absence is dangerous: a list that lacks a listener deletes it. Therefore no
// answer at all is given until every cluster is decided or its saved writer is
// known, for ten seconds at most; then a cluster of which nothing is known is left
// as clients and files have it. One of which nothing is known any more keeps what
// was published last, and an assignment is emptied but never removed.
//
// The gRPC streams and nonces are go-control-plane's, and the subscriptions of the
// state of the world; all else is this package's own (store), since the library's
// caches send listeners ahead of endpoints when an acknowledgement is outstanding,
// and answer a first refusal with the same bytes for ever.
package xds
