// Package pgautofailover asks pg_auto_failover's monitor which state it has
// assigned to each node of one group: one Watcher a cluster.
//
// Guarantees:
//
//   - The goal is what counts; what a node reported is shown beside it. The
//     monitor's word on positions is never used: for a standby it is what was
//     received, not what was replayed.
//   - One kept session to the monitor, with LISTEN state. A notification means
//     "read again now" and nothing more, since every role of that database can send
//     one; several within 30 ms are one. Without any, the table is read every Poll,
//     since silence of a keeper and the removal of a node are not announced.
//   - One statement a read, which takes no lock that anybody waits for. Columns go
//     by their names, so that a column more or less is no fault (2.0 to 2.3). Ages
//     are made by the monitor's own clock.
//   - What cannot be read (the monitor is away, restarts, is being upgraded, or its
//     table has no row for the group) is a Failure, never an empty picture.
//   - Every question has a deadline, so a session whose other end is gone is found
//     out within one; and the monitor is told to drop ours after 30 s without a
//     sign of life.
//
// Facts about the monitor are those of version 2.0, read in its source and tried
// on Debian's packages; the other versions have the same table (2.3 adds columns).
package pgautofailover
