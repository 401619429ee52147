// Package labtest gives tests a lab that is closed when they end. It is apart from package lab so that no
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
func ForTest(tb testing.TB, needs ...string) *lab.Lab {
	tb.Helper()
	Need(tb, needs...)
	l, err := lab.New(lab.Options{
		Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
		Keep:   os.Getenv("PGSTEER_LAB_KEEP") == "1",
	})
	if missing, ok := errors.AsType[*lab.Missing](err); ok {
		absent(tb, missing)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() && os.Getenv("PGSTEER_LAB_KEEP") == "1" {
			tb.Logf("the lab's files are in %s", l.Dir())
		}
		if err := l.Close(); err != nil {
			tb.Errorf("closing the lab: %v", err)
		}
	})
	return l
}

// Need skips the test if a server is missing, or fails it with CI=true.
func Need(tb testing.TB, needs ...string) {
	tb.Helper()
	for _, n := range needs {
		if err := lab.Available(n); err != nil {
			absent(tb, err)
		}
	}
}

func absent(tb testing.TB, err error) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(err)
	}
	tb.Skip(err)
}
