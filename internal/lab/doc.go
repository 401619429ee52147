// Package lab starts real servers on free loopback ports and stops them
// cleanly: PostgreSQL clusters with streaming replication, PgBouncer, HAProxy,
// Consul, Patroni and Envoy. The end-to-end tests and "pgsteer demo" use it.
//
// What a [Lab] guarantees:
//
//   - Everything listens on 127.0.0.1 alone, on ports outside the kernel's
//     range for outgoing connections, reserved against every other lab on the
//     machine until [Lab.Close]. A server keeps its port when it is stopped and
//     started again.
//   - All files lie in one folder, which Close removes.
//   - Servers never outlive their lab. Close stops them in reverse order, kills
//     what does not stop, and then whatever still works inside the folder. When
//     the process of the lab dies without Close, even by SIGKILL, the kernel
//     kills its children, and a guardian process kills the rest and removes the
//     folder.
//   - A context bounds the call it is given to, never the life of a server. A
//     context without a deadline gets one of a minute (three for Patroni), so
//     no call hangs.
//   - A call returns when its effect can be seen from outside: a started server
//     answers, a promoted node is writable, a frozen one has stopped.
//
// It runs as a normal user, and as root, in which case PostgreSQL, PgBouncer and
// Patroni run as the account "postgres". A server that is not installed gives an
// error of type [*Missing], which says how to get it. Linux only: processes are
// found through /proc.
package lab
