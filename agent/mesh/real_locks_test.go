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

// A real Consul gives many locks in one transaction, tells which of them others have, and
// which the token may not write, and the rest are taken.
func TestRealLocksOfMany(t *testing.T) {
	const n = 3 * fewLocks
	const denied = takesPerSecond + 2 // one a transaction would leave none for the others
	r := newSite(t, lab.ConsulOptions{ACL: true})
	rules := strings.NewReplacer(`"main"`, `"c"`, `service "`, `service_prefix "`, `node "`, `node_prefix "`, `"pgsteer-main"`, `"pgsteer-"`).Replace(manual(t, "# external"))
	for i := n - denied; i < n; i++ {
		rules += "\nkey \"pgsteer/mesh/" + fleetName(i) + "\" { policy = \"read\" }"
	}
	body, err := json.Marshal(map[string]string{"Name": "publish", "Rules": rules})
	if err != nil {
		t.Fatal(err)
	}
	r.api(http.MethodPut, "acl/policy", string(body))
	const secret = "2ab00000-0000-0000-0000-000000000000"
	r.api(http.MethodPut, "acl/token", `{"SecretID":"`+secret+`","Policies":[{"Name":"publish"}]}`)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	fleet := func(from, to int) *publisher {
		return r.start(r.consul, file, func(o *Options) {
			o.Clusters = make(map[string]Settings)
			for i := from; i < to; i++ {
				o.Clusters[fleetName(i)] = Settings{Service: fleetName(i)}
			}
		})
	}
	decide := func(p *publisher) {
		for name := range p.o.Clusters {
			p.views.Set(name, quiet(name, p.now().Mono))
		}
	}
	a, b := fleet(0, fewLocks+1), fleet(0, n)
	decide(a)
	r.within(soon, "all locks of the first", func() bool { return a.locks.holds() == fewLocks+1 })
	decide(b)
	r.within(soon, "the other locks", func() bool { return b.locks.holds() == n-fewLocks-1-denied })
	var all []string
	for i := range n {
		all = append(all, fleetName(i))
	}
	free, why, err := b.locks.takeAtOnce(t.Context(), all)
	if err != nil || why != nil || strings.Join(free, " ") != strings.Join(all[:n-denied], " ") {
		t.Errorf("free %q, against it %v, %v; want all but the last %d, which the token may not write", free, why, err, denied)
	}
	free, why, err = b.locks.takeAtOnce(t.Context(), all[:n-denied])
	if err != nil || why != nil || strings.Join(free, " ") != strings.Join(all[fewLocks+1:n-denied], " ") {
		t.Errorf("free %q, against it %v, %v; want those that the first one does not have", free, why, err)
	}
	r.within(soon, "word of what is denied, where it is", func() bool {
		for i, s := range b.Status() {
			if told := s.Err != nil && strings.Contains(s.Err.Error(), `'key:write' on "pgsteer/mesh/`+s.Cluster+`"`); told != (i >= n-denied) {
				return false
			}
		}
		return true
	})
	a.stop()
	r.within(soon, "the locks of the first", func() bool { return b.locks.holds() == n-denied })
}
