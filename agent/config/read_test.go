package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadFile: what never ends or waits for somebody is refused at once.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	pipe, big, good := filepath.Join(dir, "pipe"), filepath.Join(dir, "big"), filepath.Join(dir, "good")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, maxText+1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(good, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		pipe: "no regular file", "/dev/zero": "no regular file", dir: "a folder", big: "larger than 16MB",
		filepath.Join(dir, "absent"): "no such file",
	} {
		if _, err := ReadFile(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if b, err := ReadFile(good); err != nil || string(b) != "text" {
		t.Errorf("read %q, %v", b, err)
	}
}
