// Package e2e holds tests of the whole agent against real servers: PostgreSQL,
// HAProxy, Consul, Patroni and Envoy of a lab, asked over the sockets that
// balancers and people use.
package e2e
