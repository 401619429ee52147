// Package record makes a scenario of what a running agent sees, for `pgsteer
// simulate` and for whoever is to find out what happened.
//
// Guarantees:
//
//   - The scenario holds every observation that the agent folded from the moment
//     on at which the recording began, and what it knew at that moment. What is
//     missing, it says.
//   - Masked, no name of a node, cluster, host, role or database, no address and
//     no identifier of a system or session that the agent knows as one is left,
//     and equal ones stay equal. Names of pools, tags and zones stay. Texts of
//     errors may hold more than anybody can foresee: look at them.
//
// Package tap, which is the source, keeps secrets out.
package record
