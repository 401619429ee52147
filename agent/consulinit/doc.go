// Package consulinit has what Consul needs once, beside what agent/mesh publishes
// all the time: config entries by which the service mesh routes by role, prepared
// queries, and the rights of each job that pgsteer does at Consul.
//
// Guarantees:
//
//   - Documents and Policies are pure: the same configuration gives the same bytes.
//   - Compare changes nothing. A document that stands as it should is not written,
//     so a second run writes nothing.
//   - A config entry is written by check-and-set on what was compared. One that
//     has no mark of this package is foreign, and so is a prepared query that asks
//     for another service: whoever calls Write decides whether to overwrite it.
//     Nothing is ever deleted.
package consulinit
