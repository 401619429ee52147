package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Access is what a rule of Consul's ACLs allows.
type Access string

// The accesses.
const (
	Read  Access = "read"
	Write Access = "write"
)

// Right is one rule of Consul's ACLs.
type Right struct {
	Resource string // as in rules, such as key_prefix
	Name     string // of the resource, or its prefix
	Access   Access
}

// String is the rule in HCL.
func (r Right) String() string {
	return fmt.Sprintf("%s %q { policy = %q }", r.Resource, r.Name, string(r.Access))
}

// authorization is a question to Consul, and with Allow its answer.
type authorization struct {
	Resource, Access, Segment string
	Allow                     bool `json:",omitempty"`
}

// question is how Consul is asked for a right: by the one name that a prefix itself
// is, but for writing below a prefix of keys, which it can tell of the whole.
func (r Right) question() authorization {
	a := authorization{Resource: strings.TrimSuffix(r.Resource, "_prefix"), Access: string(r.Access), Segment: r.Name}
	if r.Resource == "key_prefix" && r.Access == Write {
		a.Access = "write-prefix"
	}
	return a
}

// ErrNoACLs says that Consul does not ask who may do what.
var ErrNoACLs = errors.New("Consul's ACLs are off") //nolint:staticcheck // a name

// authorizeAtOnce is how many rights Consul takes in one question.
const authorizeAtOnce = 64

// Lacking are the rights that the client's token does not have. The endpoint is the
// one that Consul's own page asks (agent/acl_endpoint.go, ACLAuthorize).
func (c *Client) Lacking(ctx context.Context, rights []Right) ([]Right, error) {
	var out []Right
	for part := range slices.Chunk(rights, authorizeAtOnce) {
		answers, err := c.authorize(ctx, part)
		if err != nil {
			return nil, err
		}
		for i, a := range answers {
			if !a.Allow {
				out = append(out, part[i])
			}
		}
	}
	return out, nil
}

func (c *Client) authorize(ctx context.Context, rights []Right) ([]authorization, error) {
	var ask []authorization
	for _, r := range rights {
		ask = append(ask, r.question())
	}
	q, err := c.Options(ctx, Stale)
	if err != nil {
		return nil, err
	}
	req, err := c.request(q, http.MethodPost, "/v1/internal/acl/authorize", ask)
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
	case http.StatusUnauthorized: // "ACL support disabled"
		return nil, ErrNoACLs
	default:
		return nil, statusError(resp)
	}
	var answers []authorization
	if err := json.NewDecoder(resp.Body).Decode(&answers); err != nil {
		return nil, fmt.Errorf("reading what the token may do: %w", err)
	}
	if len(answers) != len(rights) {
		return nil, fmt.Errorf("Consul answered %d of %d questions about the token", len(answers), len(rights)) //nolint:staticcheck // a name
	}
	return answers, nil
}
