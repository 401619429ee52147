package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// socketDir is a folder whose path is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgsteer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// check asks the agent's socket.
func check(t *testing.T, socket, path string) (int, status.Check) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	res, err := c.Get("http://pgsteer/api/v1/check/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var got status.Check
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, got
}

func TestTheSocketAnswersChecks(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	path := filepath.Join(socketDir(t), "s")
	clusters := "clusters:\n" + clusterText("main", n1, n2)
	at := func(mode string) string {
		return strings.TrimSuffix(listen(), "}\n") + ", socket: " + path + ", socket_mode: " + mode + "}\n"
	}
	r.write(base, at("0666"), clusters)
	r.up()
	r.settled("main", "n1", "n2")
	for name, want := range map[string]topology.Verdict{
		"main/primary/n1": topology.Up, "main/primary/n2": topology.Down, "main/replica/n2": topology.Up,
		"be_main_primary/n1": topology.Up, "be_main_primary/n2": topology.Down,
	} {
		if code, got := check(t, path, name); code != http.StatusOK || got.Verdict != want {
			t.Errorf("%s: %d %s, want %s", name, code, got, want)
		}
	}
	mode := func() fs.FileMode {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode()
	}
	if m := mode(); m != fs.ModeSocket|0o666 {
		t.Errorf("mode %v", m)
	}
	r.write(base, at("0660"), clusters)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if m := mode(); m != fs.ModeSocket|0o660 {
		t.Errorf("mode %v after the reload", m)
	}
	if code, _ := check(t, path, "main/primary/n1"); code != http.StatusOK {
		t.Errorf("%d after the reload", code)
	}
	r.down()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left behind")
	}
}

// What stands at the path: a dead socket is replaced, a living one and a file are
// left alone.
func TestBindUnix(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if _, err := bindUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("beside a living one: %v", err)
	}
	_ = dead.Close()
	l, err := bindUnix(path, 0o600)
	if err != nil {
		t.Fatalf("in the place of a dead one: %v", err)
	}
	_ = l.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bindUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "something else than a socket") {
		t.Errorf("over a file: %v", err)
	}
	if b, _ := os.ReadFile(path); !bytes.Equal(b, []byte("mine")) {
		t.Errorf("the file is now %q", b)
	}
	if _, err := bindUnix(filepath.Join(path, "x"), 0o600); err == nil {
		t.Error("bound below a file")
	}
}
