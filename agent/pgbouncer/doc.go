// Package pgbouncer speaks to the admin consoles of PgBouncers: it pauses databases
// around a planned switchover, and turns PgBouncers to a new writer.
//
// Guarantees:
//
//   - A database that was paused here is resumed, whatever happens: what is to be
//     paused is on the disk before PAUSE is sent, is taken back at the end of a hold,
//     at the end of Run and at the next start, and is tried until it succeeds.
//   - Only that is resumed. A database that was paused before, by an operator, stays
//     so; it is left out of a hold and named.
//   - What was left paused at a PgBouncer that is configured no more is told by the log
//     and by Status, with the command that resumes it. By another name it is known by
//     its address.
//   - Somebody else may end a hold at any time. That is no error; the hold tells it, see
//     Hold.Early, and what is paused after that is not resumed.
//   - A PgBouncer that lacks a configured database, or leads elsewhere than its
//     template's file has it, is told by Status within Recheck, and nothing is paused
//     there for a switchover.
//   - No wait is without a bound: each exchange has a timeout, and a hold ends with
//     its context.
//   - After a decision that names another writer, RECONNECT is sent for every database
//     of that cluster, once the balancers have it; where a template writes PgBouncer's
//     file, RELOAD before it in the same packet, and the hosts are looked at
//     afterwards. A failure is told and tried again.
//   - For a node that operators took out, RECONNECT is sent for every database of its read
//     pool 2 s after another node is up there too, and then as soon as no login at a server
//     is under way, after 5 s more in any case.
//
// What each command does was measured with PgBouncer 1.18: PAUSE of a paused database
// is no error, a PAUSE whose console is gone goes on, KILL pauses too, and a client
// that comes between RELOAD with another host and RECONNECT or RESUME makes PgBouncer
// open a connection, close it again, and wait for server_login_retry, so that those
// are sent in one packet.
package pgbouncer
