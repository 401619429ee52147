package mesh

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// The rights that the manual lists for the Envoys of the mesh are enough for the scripts
// of the example, and for Envoy to get what it asks Consul for.
func TestRealMeshTokens(t *testing.T) {
	labtest.Need(t, lab.NeedEnvoy)
	r := newSite(t, lab.ConsulOptions{ACL: true, Sidecars: 1})
	r.api(http.MethodPut, "agent/service/register", `{"ID":"pgsteer:main:n1","Name":"main","Port":5432,"Connect":{"SidecarService":{}}}`)
	r.api(http.MethodPut, "config", `{"Kind":"terminating-gateway","Name":"pg-gateway","Services":[{"Name":"main"}]}`)
	program, err := lab.ConsulProgram()
	if err != nil {
		t.Fatal(err)
	}
	for script, argument := range map[string]string{"sidecar.sh": "pgsteer:main:n1", "gateway.sh": "127.0.0.1:8443"} {
		body, err := json.Marshal(map[string]string{"Name": script[:7], "Rules": manual(t, "# "+script)})
		if err != nil {
			t.Fatal(err)
		}
		r.api(http.MethodPut, "acl/policy", string(body))
		var token struct{ SecretID string }
		if err := json.Unmarshal([]byte(r.api(http.MethodPut, "acl/token", `{"Policies":[{"Name":"`+script[:7]+`"}]}`)), &token); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "../../examples/consul-mesh/"+script, argument)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "CONSUL_HTTP_TOKEN="+token.SecretID,
			"CONSUL_HTTP_ADDR="+r.consul.Addr(), "CONSUL_GRPC_ADDR="+r.consul.GRPCAddr())
		bootstrap, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, &errs)
		}
		if _, err := r.lab.Envoy(t.Context(), lab.EnvoyOptions{Bootstrap: string(bootstrap)}); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	}
}
