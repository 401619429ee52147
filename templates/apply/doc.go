// Package apply keeps groups of configuration files, and the programs that read
// them, as the newest snapshots want them. A group is the set of files that one
// reload makes live.
//
// Four texts are kept apart per group, as hashes: desired (rendered from the
// newest snapshots), staged (passed the check), on disk (read again before each
// use) and running (made live by the last confirmed reload). Work goes on until
// running equals desired.
//
// Guarantees:
//
//   - A text reaches its destination only after the group's check command has
//     accepted it, by an atomic rename in the same folder. A reader sees the old
//     file or the new one, with its mode already set, never a part of it. If one
//     file of a group cannot be replaced, the earlier ones are put back.
//   - With Preflight a text for HAProxy is also refused, before it is at its
//     destination, for a new port that is taken or a folder that is missing. Nothing
//     that the running HAProxy has, or may have, is tried.
//   - A reload by systemd or a command that had no effect is asked of HAProxy's
//     master, once, where there is a MasterSocket.
//   - A reload that fails or cannot be confirmed puts the last good files back,
//     so that a restart of the program never meets a bad one. It is repeated
//     with back-off, up to a minute, and so is a check that refused a text, since
//     what it stumbled over may lie elsewhere; a reload in which HAProxy ended, after
//     ten minutes. Retry makes it at once.
//   - A node or tag that no file can hold is left out with a warning, and all
//     others go on.
//   - Nothing is rendered while a cluster of the group has not delivered its
//     nodes, and a cluster that lost all or most of its nodes at once keeps them for
//     EmptyHold. What stands is held meanwhile, and the other clusters of the group go on.
//   - There is one reload per ReloadInterval at most. A later change waits, none
//     is dropped, and the newest wins.
//   - A failure is never the end of Run, and groups do not wait for each other.
//     The end of Run changes nothing outside: a check is broken off, a reload
//     that has begun is finished within its Timeout.
//
// Beside each destination stand, as dot files that HAProxy's folder mode leaves
// out: NAME.pgsteer-good, the text of the last confirmed reload;
// NAME.pgsteer-rejected, the last text that was refused; and, while a reload is
// owed, NAME.pgsteer-pending, so that a crash in between is made good.
package apply
