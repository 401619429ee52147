// Package patronitest is a Patroni cluster for tests: the members' REST
// interface over a store that the test writes, in memory and on whatever clock
// the test has.
//
// Guarantees: the status and fields of /leader, the list of /cluster, and the
// values of /config and /history are as Patroni 3.0.2 and 4.1.5 give them,
// measured or read in their source, including what a member answers that has
// lost its store; a member sees the store as it is, as it was when the member's
// sight was frozen, or not at all. Nothing runs in the background, and nothing
// elects: who holds the key, and who still believes so, is the test's to say. A
// Cluster is an http.RoundTripper that serves all members by their addresses,
// and Handler serves one of them on a real socket.
package patronitest
