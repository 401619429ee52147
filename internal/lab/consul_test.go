package lab_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestConsulWithACLs: nothing is given to those without the token.
func TestConsulWithACLs(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := must(l.ConsulWith(ctx, lab.ConsulOptions{ACL: true}))(t)
	if err := c.Put(ctx, "service/main/leader", "n1"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + c.Addr() + "/v1/kv/service/main/leader")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusForbidden {
		t.Errorf("without a token: status %d, want nothing", resp.StatusCode)
	}
}

// TestConsulClientAgent: it speaks for its server, stops, and comes back.
func TestConsulClientAgent(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server := must(l.Consul(ctx))(t)
	client := must(server.Client(ctx))(t)
	if err := client.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	if got := must(server.Get(ctx, "k"))(t); got != "v" {
		t.Errorf("the server has %q, want what was written through the client", got)
	}
	if err := client.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := client.API(ctx, http.MethodGet, "nonsense", ""); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a path that is none gives %v", err)
	}
}
