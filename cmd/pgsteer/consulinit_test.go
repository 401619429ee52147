package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// consul-init as an operator uses it: look, write, look again; what another tool
// made is left alone until --force, and nothing else is written beside it. The
// rights that doctor --acl prints are enough for it.
func TestConsulInit(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	consul, err := l.ConsulWith(t.Context(), lab.ConsulOptions{ACL: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	api := func(method, path, body string) {
		t.Helper()
		if _, err := consul.API(t.Context(), method, path, body); err != nil {
			t.Fatal(err)
		}
	}
	file := path("pgsteer.yaml", fmt.Sprintf("consul: {address: \"http://%s\"}\nmesh: {mode: external}\nclusters:\n  main: {nodes: {n1: \"10.0.0.1:5432\"}}\n", consul.Addr()))
	code := func(want int, line string, has ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := run(strings.Fields(line), streams{&out, &errs}); got != want {
			t.Errorf("%s: code %d, want %d: %s", line, got, want, &errs)
		}
		for _, text := range has {
			if !strings.Contains(out.String()+errs.String(), text) {
				t.Errorf("%s does not say %q:\n%s%s", line, text, &out, &errs)
			}
		}
		return out.String()
	}
	code(1, "consul-init -c "+file, "403", "nothing was changed")

	code(1, "doctor -c "+file, "the token lacks 5 of 5 rights", `session_prefix "" { policy = "write" }`)

	_, rules, _ := strings.Cut(code(0, "doctor --acl -c "+file), "\n# consul-init: ")
	_, rules, _ = strings.Cut(rules, "\n")
	api(http.MethodPut, "acl/policy", fmt.Sprintf(`{"Name":"init","Rules":%q}`, rules))
	api(http.MethodPut, "acl/token", `{"SecretID":"3ab00000-0000-0000-0000-000000000000","Policies":[{"Name":"init"}]}`)
	command := "consul-init -c " + file + " --token-file " + path("token", "3ab00000-0000-0000-0000-000000000000") + " "

	api(http.MethodPut, "config", `{"Kind":"service-defaults","Name":"main","Protocol":"tcp"}`)
	code(1, command+"--apply", "pgsteer did not make service-defaults/main; nothing was written")
	code(1, command, `+  "created-by" = "pgsteer consul-init"`, "pgsteer did not make service-defaults/main")
	code(2, command+"--only service-defaults/main-rw", `+Protocol = "tcp"`, "--apply writes them")
	code(0, command+"--apply --force", "written: service-defaults/main\n", "written: prepared-query/main-ro\n")
	code(0, command, "everything as it should be: 8 documents")

	api(http.MethodPut, "config", `{"Kind":"service-resolver","Name":"main-ro","Meta":{"created-by":"pgsteer consul-init"},"Redirect":{"Service":"main","ServiceSubset":"sync"}}`)
	code(2, command, "-  ServiceSubset = \"sync\"\n+  ServiceSubset = \"replica\"\n", "1 of 8 documents differ")
	code(0, command+"--apply", "written: service-resolver/main-ro")
	code(0, command, "everything as it should be")

	code(0, "consul-init -o hcl -c "+file, "# service-resolver/main\n", "not here: 2")
	code(0, "consul-init -o json --only prepared-query/main-rw -c "+file, `"Near": "_agent"`)
	code(1, "consul-init --only x -c "+file, "is none of: service-defaults/main service-defaults/main-rw")
	code(2, "consul-init --force -c "+file, "--force is for --apply")
	code(2, "consul-init --apply -o hcl -c "+file, "-o hcl only prints")
}
