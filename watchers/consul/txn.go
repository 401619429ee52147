package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// maxTrees is how many reads go into one transaction. Consul takes 128; half of
// that keeps the answer, with some 5 kB a scope, at a third of a megabyte.
const maxTrees = 64

// trees reads all keys that begin with any of the prefixes, in one transaction
// that writes nothing: what it finds is one moment of one server. A prefix
// without keys is no error. Keys that the token may not read are left out, which
// the meta tells; its index is not set, since a transaction has none.
//
// It is written by hand because the library drops the word of left-out keys,
// which a transaction has in its body alone, and the status of an error.
// Measured on Consul 1.14, the body in its source since 1.11: an older one does
// not tell of left-out keys.
func (c *Client) trees(ctx context.Context, mode Consistency, prefixes []string) (api.KVPairs, *api.QueryMeta, error) {
	q, err := c.Options(ctx, mode)
	if err != nil {
		return nil, nil, err
	}
	ops := make(api.TxnOps, 0, len(prefixes))
	for _, p := range prefixes {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{
			Verb: api.KVGetTree, Key: p, Namespace: c.tenant.namespace, Partition: c.tenant.partition,
		}})
	}
	req, err := c.txnRequest(q, ops)
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, statusError(resp)
	}
	var answer struct {
		Results []struct {
			KV *api.KVPair
		}
		ResultsFilteredByACLs bool
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, nil, fmt.Errorf("reading the answer to a transaction: %w", err)
	}
	meta := txnMeta(resp.Header)
	meta.ResultsFilteredByACLs = answer.ResultsFilteredByACLs
	pairs := make(api.KVPairs, 0, len(answer.Results))
	for _, r := range answer.Results {
		if r.KV != nil {
			pairs = append(pairs, r.KV)
		}
	}
	return pairs, meta, nil
}

// statusError reads an answer that is none.
func statusError(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // of no use but for the error's text
	return api.StatusError{Code: resp.StatusCode, Body: string(text)}
}

// txnRequest asks for a transaction with the options of one read.
func (c *Client) txnRequest(q *api.QueryOptions, ops api.TxnOps) (*http.Request, error) {
	return c.request(q, http.MethodPut, "/v1/txn", ops)
}

// request asks what the library does not, or answers with less, with the options of
// one read.
func (c *Client) request(q *api.QueryOptions, method, path string, what any) (*http.Request, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("writing down a request for %s: %w", path, err)
	}
	query := url.Values{}
	if q.AllowStale {
		query.Set("stale", "")
	}
	if q.RequireConsistent {
		query.Set("consistent", "")
	}
	for key, value := range map[string]string{"dc": c.dc, "ns": c.tenant.namespace, "partition": c.tenant.partition} {
		if value != "" {
			query.Set(key, value)
		}
	}
	u := url.URL{Scheme: c.ep.scheme, Host: c.ep.host, Path: c.ep.prefix + path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(q.Context(), method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", c.ep.display, err)
	}
	if q.Token != "" {
		req.Header.Set("X-Consul-Token", q.Token)
	}
	return req, nil
}

// txnMeta reads the headers of an answer; what is missing is unknown, which
// counts as no leader.
func txnMeta(h http.Header) *api.QueryMeta {
	m := &api.QueryMeta{DefaultACLPolicy: h.Get("X-Consul-Default-Acl-Policy")}
	ms, err := strconv.ParseUint(strings.TrimSpace(h.Get("X-Consul-Lastcontact")), 10, 32)
	m.LastContact = time.Duration(ms) * time.Millisecond
	m.KnownLeader = err == nil && h.Get("X-Consul-Knownleader") == "true"
	return m
}
