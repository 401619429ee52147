package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

var update = flag.Bool("update", false, "write the generated page of the manual anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the moment at which every test looks.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func options(t *testing.T, yaml string) Options {
	t.Helper()
	if !strings.Contains(yaml, "clusters:") {
		yaml += "\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}}}\n"
	}
	c, err := config.Parse(filepath.Join(t.TempDir(), "pgsteer.yaml"), []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return Options{Config: c, Now: func() time.Time { return noon }}
}

// of runs one check and returns its rows, each as "LEVEL subject: found".
func of(t *testing.T, check string, o Options) []string {
	t.Helper()
	var rows []string
	for _, r := range Run(t.Context(), o) {
		if r.Check != check {
			continue
		}
		rows = append(rows, fmt.Sprintf("%s %s: %s", r.Level, r.Subject, r.Found))
		if (r.Do == "") != (r.Level == OK) {
			t.Errorf("%s %s %s: what to do is %q", r.Level, check, r.Found, r.Do)
		}
		if r.Tried == "" {
			t.Errorf("%s %s: nothing says what was tried", r.Level, check)
		}
	}
	return rows
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// write makes a file in a folder of the test.
func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// session is a node that answers with facts.
type session struct {
	facts facts
	err   error
}

func (s session) Value(context.Context, string) (string, error) {
	b, err := json.Marshal(s.facts)
	return string(b), errors.Join(err, s.err)
}

func (session) Close() {}

// good is a node without fault.
var good = facts{Role: "pgsteer", Limit: 10, Monitor: true, TLS: true, Max: 100, Reserved: 3, Used: 20, NowUS: noon.UnixMicro()}

// node1 logs in to n1, where everything is good but for what change does.
func node1(change func(*facts)) func(context.Context, string, topology.Node) (Session, *topology.Failure) {
	f := good
	change(&f)
	return func(context.Context, string, topology.Node) (Session, *topology.Failure) {
		return session{facts: f}, nil
	}
}

// haproxy answers at any address: to a command that begins with a key, its value.
func haproxy(t *testing.T, answers map[string]string) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	return func(context.Context, string, string) (net.Conn, error) {
		if answers == nil {
			return nil, syscall.ECONNREFUSED
		}
		client, srv := net.Pipe()
		go func() {
			defer srv.Close()
			var line []byte
			for b := make([]byte, 1); ; line = append(line, b[0]) {
				if _, err := srv.Read(b); err != nil || b[0] == '\n' {
					break
				}
			}
			for command, answer := range answers {
				if strings.HasPrefix(string(line), command) {
					_, _ = io.WriteString(srv, answer+"\n")
				}
			}
		}()
		return client, nil
	}
}
