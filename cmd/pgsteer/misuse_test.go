package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestMisuse: a wrong command line ends with 2, whoever finds it, the parser or the
// subcommand; what is wrong elsewhere ends with 1.
func TestMisuse(t *testing.T) {
	t.Setenv("HAPROXY_PROXY_NAME", "")
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "expected one of"},
		{"nonsense", 2, "unexpected argument"},
		{"render", 2, "missing flags"},
		{"run", 2, "say what to watch"},
		{"run --node a=10.0.0.1", 2, "--node a=10.0.0.1: not name=host:port"},
		{"run -c /nowhere --user bob", 1, "read the configuration"},
		{"run -c /nowhere", 1, "read the configuration"},
		{"validate /nowhere", 1, "no such file"},
		{"explain a/b/c", 2, "is not CLUSTER/NODE"},
		{"explain a/b --address /nowhere", 1, "is it running"},
		{"check", 2, "say whom to ask about"},
		{"check a b", 2, "2 arguments"},
		{"check a/b", 2, "is not CLUSTER/POOL/NODE"},
		{"check a/b/.", 2, "is not CLUSTER/POOL/NODE"},
		{"check a/b/c --code 0", 2, "1 to 125"},
		{"check a/b/c --code 7 --address /nowhere", 7, "is it running"},
		{"maintenance start", 2, "say what"},
		{"maintenance wait a", 2, "sessions are drained at one node"},
		{"maintenance list --cert-file a --key-file b", 2, "need --ca-file"},
		{"maintenance watch --key-file b", 2, "need --ca-file"},
		{"maintenance start a --cert-file a --key-file b", 2, "need --ca-file"},
		{"switchover a --cert-file a --key-file b", 2, "need --ca-file"},
		{"status --ca-file a --cert-file b", 2, "need each other"},
		{"maintenance start a/", 2, "is neither CLUSTER/NODE nor CLUSTER"},
		{"envoy-bootstrap --server nowhere", 2, "--server"},
		{"envoy-bootstrap --admin nowhere", 2, "--admin"},
		{"record a/b", 2, "the agent was not asked"},
		{"record a --for=-1s", 2, "no time to record for"},
		{"doctor -c /nowhere", 1, "no such file"},
	} {
		var out, errs bytes.Buffer
		if code := run(strings.Fields(tt.args), streams{&out, &errs}); code != tt.code {
			t.Errorf("pgsteer %s: code %d, want %d: %s%s", tt.args, code, tt.code, &out, &errs)
		}
		if said := out.String() + errs.String(); !strings.Contains(said, tt.says) {
			t.Errorf("pgsteer %s does not say %q: %s", tt.args, tt.says, said)
		}
	}
}
