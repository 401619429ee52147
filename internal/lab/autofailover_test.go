package lab_test

import (
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestAutoFailover: a monitor with two nodes, a switchover, and everything gone
// in the end.
func TestAutoFailover(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedAutoFailover)
	c, err := l.AutoFailover(t.Context(), lab.AutoFailoverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Node("n1").Conn(t.Context(), lab.AppUser, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "INSERT INTO writes DEFAULT VALUES"); err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(t.Context(), "perform_failover('default', 0)"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitStates(t.Context(), "n1=secondary", "n2=primary"); err != nil {
		t.Fatal(err)
	}
}
