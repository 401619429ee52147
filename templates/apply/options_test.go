package apply

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

func validGroup() Group {
	return Group{
		Name: "lb", Clusters: []string{"main"},
		Files: []File{{Template: render.Template{Name: "t", Text: "x"}, Destination: "/etc/x"}},
	}
}

func TestExpand(t *testing.T) {
	g := validGroup()
	g.Files = append(g.Files, File{Destination: "/etc/y"})
	p := g.places([]string{"/etc/.x1", "/etc/.y1"})
	for _, c := range []struct{ in, want, fault string }{
		{in: "-f", want: "-f"},
		{in: "{{.Staged}}", want: "/etc/.x1"},
		{in: "--from={{ .Staged }}:{{.Destination 2}}", want: "--from=/etc/.x1:/etc/y"},
		{in: "{{.Staged 2}}", want: "/etc/.y1"},
		{in: "$(x) {.Staged}", want: "$(x) {.Staged}"},
		{in: "{{.Staged 3}}", fault: "has 2 files"},
		{in: "{{.Staged 0}}", fault: "has 2 files"},
		{in: "{{.src}}", fault: "{{.src}} is neither"},
		{in: "{{.Staged", fault: "is neither"},
		{in: "{{.Staged | html}}", fault: "is neither"},
	} {
		got, err := p.expand([]string{"prog", c.in})
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%q: error %v, want %q", c.in, err, c.fault)
			}
			continue
		}
		if err != nil || got[1] != c.want {
			t.Errorf("%q: %q, %v, want %q", c.in, got, err, c.want)
		}
	}
}

func TestNewListsEveryFault(t *testing.T) {
	bad := Group{
		Name: "lb", Timeout: -1, Check: []string{"check", "{{.src}}"}, Reload: []string{"r", "{{.Staged}}"},
		Files: []File{{Template: render.Template{Name: "t", Text: "{{ nope }}"}, Destination: "relative", Mode: 0o666}},
	}
	twin := validGroup()
	_, err := New(Options{Groups: []Group{bad, validGroup(), twin}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Views and Now", "no cluster", "time is negative", `"relative" is not an absolute path`, "mode 0666",
		`t:1:4: function "nope" not defined`, "{{.src}} is neither", "{{.Staged}} is gone by then",
		`group "lb" is there twice`, `both write /etc/x`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestNewDoesNothing(t *testing.T) {
	a, err := New(Options{
		Groups: []Group{validGroup()}, Views: new(latest.Map[string, topology.View]), Now: topology.NewTicker(time.Now),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := a.Status()[0]; s.State != StateWaiting || s.Group != "lb" {
		t.Errorf("status %+v", s)
	}
}

func TestOnceAndDiff(t *testing.T) {
	g := validGroup()
	g.Files[0].Template.Text = "a\nb {{ .Vars.x }}\nc\n"
	g.Files = append(g.Files, File{Template: render.Template{Name: "same", Text: "same\n"}, Destination: "/etc/same"})
	texts, err := Once(g, render.ViewOf(nil, render.Settings{Vars: map[string]string{"x": "new"}}))
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) ([]byte, error) {
		switch path {
		case "/etc/x":
			return []byte("a\nb old\nc\n"), nil
		case "/etc/same":
			return []byte("same\n"), nil
		}
		return nil, os.ErrNotExist
	}
	got, err := Diff(texts, read)
	if err != nil {
		t.Fatal(err)
	}
	want := "diff /etc/x /etc/x (rendered)\n--- /etc/x\n+++ /etc/x (rendered)\n@@ -1,3 +1,3 @@\n a\n-b old\n+b new\n c\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Once(g, render.ViewOf(nil, render.Settings{})); err == nil || !strings.Contains(err.Error(), "t:2:") {
		t.Errorf("a missing key: %v", err)
	}
}
