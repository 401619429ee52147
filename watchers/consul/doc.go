// Package consul watches Consul: Patroni's keys, which say who holds the leader
// key and which nodes the cluster has (Watcher), and services in the catalog,
// whose instances are nodes (Catalog).
//
// Guarantees for Patroni's keys:
//
//   - Leader, members and sessions of one observation come from one request.
//   - An absent leader key, or a scope without members, is reported only after a
//     second read in consistent mode said the same.
//   - A change of the leader key is read within a round trip; a Consul that
//     stops answering is reported within ReadEvery + ReadTimeout, although the
//     blocking query on the leader key still hangs.
//   - A value that cannot be read concerns its own member alone. No two names of
//     members differ by case only: one of them is left out with a warning, never
//     the leader.
//
// For services:
//
//   - A list is reported when it changes, an empty one only after a second read
//     in consistent mode said the same.
//   - An instance that cannot be a node concerns itself alone; when none can, that
//     is a failure and no empty list.
//
// For both:
//
//   - An answer from which ACLs left something out, that comes from a server
//     without a leader, or that is older than a second is never taken for the truth.
//   - While Consul fails, the failure is reported again every few seconds; once
//     it answers again, its answer is reported within 5 s.
//   - Requests are bounded by token buckets, whatever Consul answers, and
//     connections by what Consul grants a host.
//   - No CONSUL_* and no *_PROXY variable of the environment has any effect.
//   - Run returns soon after its context ends, from every wait, and leaves no
//     goroutine behind.
//
// More than a hundred watchers of one client share their requests, which changes
// this: all leader keys are looked at once a second, and a change that one server
// tells is read for sure then; whole scopes are read every ten to eleven seconds,
// up to 64 in one transaction; a cluster has a blocking query of its own, and
// with it the round trip, for 15 s after a change or a Confirm, as long as there
// are no more than 64 of those. An answer to an outage may come a second later.
// What ACLs hide of one scope fails that scope alone. A service is asked for once
// a minute.
package consul
