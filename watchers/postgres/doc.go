// Package postgres asks one PostgreSQL server directly what it is: one Prober
// a node.
//
// Guarantees:
//
//   - One kept session per node, and for the moment of a fresh login a second
//     one. Besides, while asked for: one for the write probe as long as the node
//     is writable, and one through each pool's port that is checked by a query. A
//     write that nobody answers is waited on and holds no further backend.
//   - Every question has a deadline; a node that hangs delays nobody else, and
//     neither a login that hangs, nor a write, nor a pool's port delays the node's
//     own ticks.
//   - What a role may not see is unknown, never an error and never zero. A role
//     with CONNECT alone is enough to tell primary from standby; pg_monitor
//     shows everything.
//   - Probing leaves no line in PostgreSQL's log at its default settings, unless
//     the login or a write is refused, or a promotion ends recovery in the middle
//     of one statement; and none in PgBouncer's, but for the login and the end of
//     the kept session. Connections end with Terminate or a plain FIN, never with
//     a reset: what a server says late is read and dropped.
//   - Attempts that a server has to refuse at its own cost (start-up, full
//     slots, wrong credentials, a write without rights) are spaced.
//   - Texts of failures and log lines never hold a password.
//
// PostgreSQL 14 and newer.
package postgres
