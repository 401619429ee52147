// Package mesh publishes decisions into Consul: one service a cluster, one
// instance a node, with tags, meta and weights that say its role and a check that
// says whether it takes new sessions, so that DNS, prepared queries and the
// service mesh route by role.
//
// Guarantees:
//
//   - At most one instance that this package writes has the tag primary, and a
//     node whose writer role is decided away loses the tag, whatever else is unknown
//     of it; a primary that takes no sessions waits for it while nothing is decided of the
//     node that stands with it. External: both in one transaction. Local: each host speaks for its own
//     node alone, so there may be a moment with two.
//   - What is not decided is not written: undecided nodes, views that are no longer
//     valid and a cluster without any node leave what stands. A node that has left
//     the cluster is critical first and deregistered later.
//   - External: every write is one transaction with a check of the publisher's lock,
//     so a publisher that has lost it cannot write. The lock is free again within
//     twice the session's TTL after a publisher died, at once when it stopped, and
//     some 5 s after it could not publish any more, be its session alive. An outage of
//     Consul itself costs nobody the lock.
//   - The same decision gives the same bodies on every agent. Nothing is written
//     that stands already; what somebody else changed, or an agent forgot, is
//     written again, at a bounded rate.
//   - Only instances whose ID begins with pgsteer: are ever touched, and no node of
//     somebody else's that has the external one's name. Local: checks that others have
//     added stay, such as that of consul maint.
//   - What cannot be done for one cluster, or written of one instance, keeps neither
//     another cluster from being published nor a check that is right from being fed.
//   - What a change of the configuration leaves behind (another name of the node here or
//     of the cluster, the other mode) is critical or removed within 30 s or so, of which
//     an outage of Consul is no part.
//   - Ending leaves everything as it stands, but for the lock.
package mesh
