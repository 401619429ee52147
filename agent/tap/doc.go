// Package tap lets others watch what the rules of a running agent are fed with:
// what the agent knew when a reader came, then every observation in the order in
// which it is folded, and every decision. `pgsteer record` makes a scenario of it.
//
// Guarantees:
//
//   - A reader never keeps the rules waiting. Each has a bounded buffer; what
//     does not fit is lost to that reader, and it is told how much.
//   - Without a reader a tap keeps references alone, at most two observations per
//     source, way of asking and class of failure.
//   - Nothing secret leaves the agent: of a cluster's configuration only what the
//     rules need is sent, and in every text that is sent passwords and tokens are
//     replaced by ****. Addresses and names are sent as they are.
package tap
