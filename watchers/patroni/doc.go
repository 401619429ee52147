// Package patroni asks Patroni's REST API who holds the leader key and which
// nodes a cluster has, for clusters whose store pgsteer does not read itself:
// etcd, Kubernetes, ZooKeeper, or a Consul that it may not reach.
//
// What a member says is hearsay of the store, and possibly old. So
// (docs/decisions/010-patroni-rest.md has the reasons):
//
//   - A leader is named when it says itself, alone and with the store in sight,
//     that it holds the key, or when the lists of more than half of all members
//     name it. Its own denial then bars it from entering.
//   - An absent leader key takes the lists of more than half of all members, at
//     least two, that all lack a leader, nobody who claims the key, and the same
//     again in a second round that began after the first was over.
//   - Everything else, and silence, is a failure and never a picture; it is
//     reported once two rounds in succession ended so.
//   - Only an answer that is JSON, of the right scope, and by the member that
//     was asked is evidence. Redirects are not followed, bodies are bounded, and
//     an empty list of members is taken for no answer.
//   - A member is asked for its word once a second and, while it alone claims the
//     key, for the list every few seconds; Confirm asks sooner, within a token
//     bucket. A member that does not answer in time is left alone for longer each
//     time: each question that hangs holds a thread of its Patroni.
//   - An endpoint that answers for several members, as a balancer does, helps to
//     find the members and has no vote.
//   - No *_PROXY variable of the environment has any effect.
//   - Run returns soon after its context ends and leaves no goroutine behind.
package patroni
