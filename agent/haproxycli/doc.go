// Package haproxycli speaks to the command line that HAProxy offers on its
// sockets: the one of a worker ("stats socket") and the one of the master process
// (-S), which lists the processes and passes commands on to each of them.
//
// Guarantees: an answer is read to its end, whatever parts it comes in; every
// exchange has a deadline and a bound on what it reads; an answer that was cut off
// is an error and never half an answer.
package haproxycli
