package mesh

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// With the rights that the manual lists for mode local: what consul maint says stays
// through a change of roles, the instance of a node's old name goes, and so does what
// mode external has left.
func TestRealLeftovers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until what is left is nobody's, 30 s")
	}
	r := newSite(t, lab.ConsulOptions{ACL: true})
	const secret = "2ab00000-0000-0000-0000-000000000000"
	rules, err := json.Marshal(map[string]string{"Name": "publish", "Rules": manual(t, "# local")})
	if err != nil {
		t.Fatal(err)
	}
	r.api(http.MethodPut, "acl/policy", string(rules))
	r.api(http.MethodPut, "acl/token", `{"SecretID":"`+secret+`","Policies":[{"Name":"publish"}]}`)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.start(r.consul, file, forEver("n2"))
	p.see(n2Leads)
	r.stands(soon, "n2 primary passing")
	r.api(http.MethodPut, "agent/service/maintenance/pgsteer:main:n2?enable=true&reason=disk", "")
	p.see(n1Leads)
	r.stands(soon, "n2 replica async passing")
	if checks := r.api(http.MethodGet, "agent/checks", ""); !strings.Contains(checks, `"_service_maintenance:pgsteer:main:n2"`) {
		t.Errorf("the operator's word is lost: %s", checks)
	}
	r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
	p.stop()

	r.api(http.MethodPut, "catalog/register", `{"Node":"pgsteer-main","Address":"192.0.2.1","NodeMeta":{"external-node":"true"},"Service":{"ID":"pgsteer:main:n9","Service":"main","Tags":["primary"]},
		"Check":{"CheckID":"pgsteer:main:n9","ServiceID":"pgsteer:main:n9","Status":"passing"}}`)
	p = r.start(r.consul, file, forEver("n1"))
	p.see("n1 up/writer down/wrong_role no")
	r.stands(soon, "n1 primary passing, n2 critical, n9 primary passing")
	r.within(soon, "the warning", func() bool { e := p.Status()[0].Err; return e != nil && strings.Contains(e.Error(), "pgsteer:main:n9") })
	r.stands(goneFor+tidyEvery+soon, "n1 primary passing")
	r.within(tidyEvery+soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
	if s := p.Status()[0]; s.Writes > 4 { // n1, the check of its sidecar, and twice n2
		t.Errorf("status %+v", s)
	}
	if sidecars := r.api(http.MethodGet, "catalog/service/main-sidecar-proxy", ""); strings.Contains(sidecars, "n2") || !strings.Contains(sidecars, "n1") {
		t.Errorf("sidecars are %s", sidecars)
	}
}

// This host has another node of the cluster after a change of the configuration: its
// former instance goes, and that of the former node's own host stays.
func TestRealMoved(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until what is left is nobody's, 30 s")
	}
	r := newSite(t, lab.ConsulOptions{})
	p := r.start(r.consul, "", owned("n2", "db1"))
	p.see(n1Leads)
	r.stands(soon, "n2 replica async passing")
	p.stop()
	r.api(http.MethodPut, "catalog/register", `{"Node":"db2","Address":"10.0.0.2","Service":{"ID":"pgsteer:main:n2","Service":"main","Tags":["replica"],"Meta":{"publisher":"`+ownerMark("db1")+`"}},
		"Check":{"CheckID":"pgsteer:main:n2","ServiceID":"pgsteer:main:n2","Status":"passing"}}`)
	p = r.start(r.consul, "", owned("n1", "db1"))
	p.see(n1Leads)
	r.stands(soon, "n1 primary passing, n2 critical, n2 replica passing")
	r.stands(goneFor+soon, "n1 primary passing, n2 replica passing")
	r.within(soon, "no trouble", func() bool { s := p.Status()[0]; return s.Err == nil && s.Repairs == 0 })
	r.within(soon, "the end of its sidecar", func() bool {
		sidecars := r.api(http.MethodGet, "catalog/service/main-sidecar-proxy", "")
		return strings.Contains(sidecars, "n1") && !strings.Contains(sidecars, "n2")
	})
}

// A Consul node that only has the name of the external one stays as it is.
func TestRealForeignNode(t *testing.T) {
	r := newSite(t, lab.ConsulOptions{})
	r.api(http.MethodPut, "catalog/register", `{"Node":"pgsteer-main","Address":"10.9.9.9"}`)
	p := r.start(r.consul, "", nil)
	p.see(n1Leads)
	r.within(soon, "the refusal", func() bool {
		e := p.Status()[0].Err
		return e != nil && strings.Contains(e.Error(), "node pgsteer-main with address 10.9.9.9 is not one of pgsteer's")
	})
	r.stands(soon, "")
	r.api(http.MethodPut, "catalog/deregister", `{"Node":"pgsteer-main"}`)
	r.stands(soon, first)
	r.within(soon, "no trouble", func() bool { return p.Status()[0].Err == nil })
}
