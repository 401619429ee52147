package statefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type inner struct {
	Name string `json:"name"`
}

type outer struct {
	inner
	Gone string `json:"gone,omitempty"`
}

// Keys that a struct does not name survive; those that it names and leaves out do
// not come back from what was read before.
func TestForeignKeys(t *testing.T) {
	const text = `{"name": "a", "gone": "then", "later": {"x": 1}}`
	foreign, err := Foreign([]byte(text), new(outer))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Encode(outer{inner: inner{"b"}}, foreign)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(string(b)), "")
	if got != `{"later":{"x":1},"name":"b"}` {
		t.Errorf("written back it is %s", got)
	}
	if _, err := Foreign([]byte("[]"), new(outer)); err == nil {
		t.Error("a list is taken for an object")
	}
}

// A file is replaced as a whole, for its owner alone, also in a folder that is not
// there yet; what cannot be replaced stays, without a file beside it.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "x.json")
	for _, text := range []string{"one", "two"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := os.ReadFile(path)
	info, err := os.Stat(path)
	if err != nil || string(b) != "two\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v", b, info, err)
	}
	if aside, err := SetAside(path); err != nil || aside != path+".corrupt" {
		t.Errorf("set aside as %s: %v", aside, err)
	}
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("three")); err == nil {
		t.Error("a folder was replaced")
	}
	if all, _ := os.ReadDir(filepath.Dir(path)); len(all) != 2 {
		t.Errorf("left behind: %v", all)
	}
}
