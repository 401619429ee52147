// Package labtest gives tests a lab. It is apart from package lab so that no
// program links package testing.
package labtest

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// ForTest returns a lab that is closed when the test ends. If a needed server
// (lab.NeedPostgres and so on) is missing, the test is skipped with the reason
// and how to get it; with CI=true it fails. What the lab starts and stops is
// logged to the test. With PGSTEER_LAB_KEEP=1 the folder stays.
func ForTest(t testing.TB, needs ...string) *lab.Lab {
	t.Helper()
	Need(t, needs...)
	l, err := lab.New(lab.Options{
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Keep:   os.Getenv("PGSTEER_LAB_KEEP") == "1",
	})
	var missing *lab.Missing
	if errors.As(err, &missing) {
		absent(t, missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("PGSTEER_LAB_KEEP") == "1" {
			t.Logf("the lab's files are in %s", l.Dir())
		}
		if err := l.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	return l
}

// Need skips the test if a server is missing, or fails it with CI=true.
func Need(t testing.TB, needs ...string) {
	t.Helper()
	for _, n := range needs {
		if err := lab.Available(n); err != nil {
			absent(t, err)
		}
	}
}

func absent(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip(err)
}
