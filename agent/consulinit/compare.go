package consulinit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/watchers/consul"
)

// Change is a document and what stands in Consul under its name.
type Change struct {
	Document

	// Before is the text of what stands, "" when nothing does.
	Before string
	// Foreign: what stands was not made by this package.
	Foreign bool

	index uint64 // of the entry that stands
	id    string // of the query that stands
}

// Needed reports whether Consul has something else, or nothing.
func (c Change) Needed() bool { return c.Before != c.Text() }

// Compare reads what stands under the names of documents, as a quorum of Consul's
// servers has it.
func Compare(ctx context.Context, client *consul.Client, want []Document) ([]Change, error) {
	found := make(map[string]listing)
	changes := make([]Change, 0, len(want))
	for _, d := range want {
		l, listed := found[d.Kind]
		if !listed {
			var err error
			if l, err = list(ctx, client, d); err != nil {
				return nil, fmt.Errorf("%w; nothing was changed", err)
			}
			found[d.Kind] = l
		}
		stands := l.by[d.Name]
		if stands == nil && l.partial && d.IsEntry() {
			var err error
			if stands, err = look(ctx, client, d); err != nil {
				return nil, fmt.Errorf("%w; nothing was changed", err)
			}
		}
		c, err := compare(d, stands)
		if err != nil {
			return nil, fmt.Errorf("read %s of Consul at %s: %w; nothing was changed", d.ID(), client.Address(), err)
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// listing is everything of one kind.
type listing struct {
	by map[string]map[string]any // by name
	// partial: there may be more than the token lets see.
	partial bool
}

// list asks for all of a document's kind at once, since there may be thousands.
func list(ctx context.Context, client *consul.Client, d Document) (listing, error) {
	path := "/v1/config/" + d.Kind
	if !d.IsEntry() {
		path = "/v1/query"
	}
	var all []map[string]any
	meta, err := get(ctx, client, path, &all)
	if err != nil {
		return listing{}, failed(client, "list each "+d.Kind, err)
	}
	l := listing{by: make(map[string]map[string]any), partial: meta.ResultsFilteredByACLs || meta.DefaultACLPolicy == "deny"}
	for _, v := range all {
		name, _ := v["Name"].(string)
		l.by[name] = v
	}
	return l, nil
}

// look asks for one entry, nil when there is none; one that may not be seen is an
// error here, and not in a list.
func look(ctx context.Context, client *consul.Client, d Document) (map[string]any, error) {
	var one map[string]any
	_, err := get(ctx, client, "/v1/config/"+d.ID(), &one)
	if status, is := errors.AsType[api.StatusError](err); is && status.Code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, failed(client, "read "+d.ID(), err)
	}
	return one, nil
}

// patience bounds each request.
const patience = 10 * time.Second

func get(ctx context.Context, client *consul.Client, path string, into any) (*api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q, err := client.Options(ctx, consul.Consistent)
	if err != nil {
		return nil, err
	}
	return client.API().Raw().Query(path, into, q)
}

func failed(client *consul.Client, doing string, err error) error {
	return errors.New(client.Failure(doing, err, patience).Text)
}

// compare takes what stands, nil for nothing.
func compare(d Document, stands map[string]any) (Change, error) {
	c := Change{Document: d}
	if stands == nil {
		return c, nil
	}
	b, err := bodyOf(stands)
	if err != nil {
		return c, err
	}
	c.Before = b.text(d.Kind)
	if index, is := stands["ModifyIndex"].(float64); is {
		c.index = uint64(index)
	}
	c.id, _ = stands["ID"].(string)
	if d.IsEntry() {
		meta, _ := b["Meta"].(map[string]any)
		c.Foreign = meta[markKey] != markValue
	} else {
		service, _ := b["Service"].(map[string]any) // a query has no place for a mark
		c.Foreign = service["Service"] != d.query.Service.Service
	}
	return c, nil
}

// ErrChanged says that somebody else wrote between Compare and Write.
var ErrChanged = errors.New("somebody else has changed it since it was compared; compare again")

// Write makes Consul have the document: an entry only if it is still as it was
// compared, which a query has no way to tell.
func (c Change) Write(ctx context.Context, client *consul.Client) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := client.WriteOptions(ctx)
	if err == nil {
		err = c.write(client.API(), w)
	}
	switch {
	case errors.Is(err, ErrChanged):
		return fmt.Errorf("write %s to Consul at %s: %w", c.ID(), client.Address(), err)
	case err != nil:
		return failed(client, "write "+c.ID(), err)
	}
	return nil
}

func (c Change) write(to *api.Client, w *api.WriteOptions) error {
	if c.IsEntry() {
		done, _, err := to.ConfigEntries().CAS(c.entry, c.index, w)
		if err == nil && !done {
			err = ErrChanged
		}
		return err
	}
	q := *c.query
	q.ID = c.id
	var err error
	if c.id == "" {
		_, _, err = to.PreparedQuery().Create(&q, w)
	} else {
		_, err = to.PreparedQuery().Update(&q, w)
	}
	return err
}
