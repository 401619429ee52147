package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// This file is for those who write into Consul.

// API is the library's client, for what this package does not ask for itself. Use
// it with Options and WriteOptions alone: only they have the token.
func (c *Client) API() *api.Client { return c.api }

// WriteOptions returns the options of one write: datacenter, current token, context.
func (c *Client) WriteOptions(ctx context.Context) (*api.WriteOptions, error) {
	q, err := c.Options(ctx, Default)
	if err != nil {
		return nil, err
	}
	return (&api.WriteOptions{Datacenter: q.Datacenter, Token: q.Token}).WithContext(ctx), nil
}

// MaxOps is how many operations Consul takes in one transaction.
const MaxOps = 128

// Commit does all of the operations or none. Refusals are why Consul did none of
// them, by operation; a refusal by its ACLs is an error too.
func (c *Client) Commit(ctx context.Context, ops api.TxnOps) (refusals api.TxnErrors, err error) {
	for _, op := range ops {
		c.place(op)
	}
	q, err := c.Options(ctx, Default)
	if err != nil {
		return nil, err
	}
	req, err := c.txnRequest(q, ops)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil, nil
	case http.StatusConflict:
	default:
		return nil, statusError(resp)
	}
	var answer api.TxnResponse
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("reading why a transaction was refused: %w", err)
	}
	for _, e := range answer.Errors {
		if strings.Contains(e.What, "Permission denied") { // Consul sends no status of its own for it
			return answer.Errors, api.StatusError{Code: http.StatusForbidden, Body: e.What}
		}
	}
	return answer.Errors, nil
}

// place puts an operation into the client's namespace and partition.
func (c *Client) place(op *api.TxnOp) {
	ns, part := c.tenant.namespace, c.tenant.partition
	switch {
	case op.KV != nil:
		op.KV.Namespace, op.KV.Partition = ns, part
	case op.Node != nil:
		op.Node.Node.Partition = part
	case op.Service != nil:
		op.Service.Service.Namespace, op.Service.Service.Partition = ns, part
	case op.Check != nil:
		op.Check.Check.Namespace, op.Check.Check.Partition = ns, part
	}
}

// Instances returns every instance of a service with its checks, as a quorum of the
// servers has it. What ACLs hide is an error.
func (c *Client) Instances(ctx context.Context, service string) ([]*api.ServiceEntry, error) {
	q, err := c.Options(ctx, Consistent)
	if err != nil {
		return nil, err
	}
	entries, meta, err := c.api.Health().Service(service, "", false, q)
	if err != nil {
		return nil, err
	}
	if c.judgeMeta(meta, len(entries) == 0) != nil {
		return nil, api.StatusError{Code: http.StatusForbidden, Body: "ACLs hide instances; the token needs service read for " + service + " and node read for the Consul nodes it is on"}
	}
	return entries, nil
}

// Failure sorts the error of a request and words it for people; doing is what was
// tried, within which time.
func (c *Client) Failure(doing string, err error, within time.Duration) *topology.Failure {
	t := judgeError(err, within)
	return &topology.Failure{Class: t.class, Text: fmt.Sprintf("%s at %s: %v", doing, c.who(), t.err)}
}
