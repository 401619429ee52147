// Package consul watches Patroni's keys in Consul and reports, in one
// observation, who holds the leader key and which nodes the cluster has.
//
// Guarantees:
//
//   - Leader, members and sessions of one observation come from one request.
//   - An absent leader key, or a scope without members, is reported only after a
//     second read in consistent mode said the same.
//   - An answer that was filtered by ACLs, that comes from a server without a
//     leader, or that is older than a second is never taken for the truth.
//   - A change of the leader key is read within a round trip; a Consul that
//     stops answering is reported within ReadEvery + ReadTimeout, although the
//     blocking query on the leader key still hangs.
//   - While Consul fails, the failure is reported again every few seconds; once
//     it answers again, its answer is reported within 5 s.
//   - Requests are bounded by token buckets, whatever Consul answers.
//   - A value that cannot be read concerns its own member alone. No two names of
//     members differ by case only: one of them is left out with a warning, never
//     the leader.
//   - No CONSUL_* and no *_PROXY variable of the environment has any effect.
//   - Run returns soon after its context ends, from every wait, and leaves no
//     goroutine behind.
package consul
