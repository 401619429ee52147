// Package render turns what is known of the clusters into the text of a
// configuration file, by way of a text/template.
//
// Guarantees:
//
//   - Rendering is pure: it reads no clock, no file, no environment and no
//     network, and the same view and template give the same bytes. Each text is
//     made twice and refused when the two differ.
//   - A [View] holds nodes and settings and never a verdict, so a change of role
//     cannot change a file. The one exception is asked for: with [Settings.Roles] it
//     names who serves, for programs that have no checks. It is a value of its own: a template that writes into
//     it reaches nothing that anybody else reads.
//   - Names, addresses and tags come from outside and are data. What could be
//     read as syntax anywhere (a line break, a control character, an illegal
//     name) never reaches a text and is never repaired in silence: [ViewOf] leaves
//     the node or the tag out and says so in [View.LeftOut], and all others go on.
//     In a view that was made otherwise it makes the whole text fail.
//   - A server's address in a pool is the one that the pool's verdicts carry: the
//     pool may have a port of its own.
//   - A text is whole or there is none: a missing key, a "<no value>", a text
//     that is too long or has no content is an error with template, line and
//     column.
package render
