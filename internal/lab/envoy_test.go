package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestBrokenEnvoy: an Envoy in the cache that is a script for a Python that is gone,
// or lacks its loader, is told as broken, and not as missing.
func TestBrokenEnvoy(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedEnvoy)
	installed := must(lab.EnvoyProgram())(t)
	_, inside, ok := strings.Cut(installed, "/pgsteer/lab/")
	if !ok {
		t.Fatalf("%s is not in the cache", installed)
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	bin := filepath.Join(cache, "pgsteer", "lab", inside)
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	program := must(os.ReadFile("/bin/true"))(t)
	for text, lost := range map[string]string{
		"#!/opt/gone/python3 -I\nimport envoy\n":                      "the interpreter of its first line (#!/opt/gone/python3 -I) is gone",
		strings.ReplaceAll(string(program), "/ld-linux", "/ld-gone-"): "what it is loaded by is gone",
	} {
		if text == string(program) {
			continue // this system has another loader
		}
		if err := os.WriteFile(bin, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := l.Envoy(t.Context(), lab.EnvoyOptions{Bootstrap: "{}"})
		if err == nil {
			t.Fatal("what cannot be run was started")
		}
		for _, want := range []string{bin, lost, "scripts/setup test", filepath.Join(cache, "pgsteer", "lab", "envoy-")} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not say %q: %v", want, err)
			}
		}
	}
}
