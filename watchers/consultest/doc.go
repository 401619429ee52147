// Package consultest is a Consul agent for tests: its key-value store with
// sessions, blocking queries and the headers that clients must obey, in memory
// and on whatever clock the test has.
//
// Guarantees: indexes, waits, the 404 of a missing key and the deletion of keys
// with their session behave as in Consul 1.14, measured or read in its source;
// nothing runs in the background, so a test with fake time ends at once; each
// fault is scripted per request and leaves the store as it is. An Agent is an
// http.RoundTripper, so no port is needed, and an http.Handler for those who
// want one.
package consultest
