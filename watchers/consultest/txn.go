package consultest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxOps is how many operations Consul takes in one transaction.
const maxOps = 128

// txn answers a transaction that reads trees and does nothing else: what it
// finds is one moment. As in Consul, it carries no index, and word of keys that
// were left out is in its body alone.
func (a *Agent) txn(req *http.Request, r Request, f Fault) (*http.Response, error) {
	if err := later(req.Context(), f.Delay); err != nil {
		return nil, err
	}
	if ops, is := commitsOf(r.Body); is {
		return a.commit(req, ops), nil
	}
	trees, err := treesOf(r.Body)
	switch {
	case err != nil:
		return respond(req, http.StatusBadRequest, []byte("Failed to parse body: "+err.Error()), http.Header{}), nil
	case len(trees) > maxOps:
		text := "Transaction contains too many operations (" + strconv.Itoa(len(trees)) + " > " + strconv.Itoa(maxOps) + ")"
		return respond(req, http.StatusRequestEntityTooLarge, []byte(text), http.Header{}), nil
	case r.Consistent && r.Stale:
		text := "Cannot specify ?stale with ?consistent, conflicting semantics."
		return respond(req, http.StatusBadRequest, []byte(text), http.Header{}), nil
	}
	type result struct{ KV Pair }
	var out struct {
		Results               []result
		ResultsFilteredByACLs bool
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, tree := range trees {
		pairs, filtered := a.shown(a.list(tree))
		out.ResultsFilteredByACLs = out.ResultsFilteredByACLs || filtered || f.Filtered
		if f.Pairs != nil {
			pairs = slices.DeleteFunc(slices.Clone(f.Pairs), func(p Pair) bool { return !strings.HasPrefix(p.Key, tree) })
		}
		for _, p := range pairs {
			if !f.Empty {
				out.Results = append(out.Results, result{p})
			}
		}
	}
	f.Filtered = false
	h := a.headers(f, 0)
	h.Del("X-Consul-Index")
	return respond(req, http.StatusOK, mustJSON(out), h), nil
}

// treesOf returns the prefixes that a transaction reads.
func treesOf(body []byte) ([]string, error) {
	var ops []struct {
		KV *struct{ Verb, Key string }
	}
	if err := json.Unmarshal(body, &ops); err != nil {
		return nil, err
	}
	trees := make([]string, len(ops))
	for i, op := range ops {
		if op.KV == nil || !strings.EqualFold(op.KV.Verb, "get-tree") {
			return nil, errUnserved
		}
		trees[i] = op.KV.Key
	}
	return trees, nil
}
