package mesh

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// settled starts a publisher of n clusters and waits until nothing of that is new.
func (r *rig) settled(n int) *agent {
	r.t.Helper()
	views := new(latest.Map[string, topology.View])
	for i := range n {
		views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
	}
	a := r.startFleet("a", n, views)
	r.counted(time.Hour, func(time.Duration) bool { return a.whole() })
	time.Sleep(2*surveyEvery + 100*time.Millisecond)
	return a
}

// ofOne is what stands of one cluster.
func (r *rig) ofOne(i int) string {
	var out []string
	all := r.consul.Published(fleetName(i))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, strings.Join([]string{id[strings.LastIndex(id, ":")+1:], strings.Join(all[id].ServiceTags, " "), all[id].Check.Status}, " "))
	}
	return strings.Join(out, ", ")
}

// With a thousand clusters, which takes eight minutes to read one by one, what somebody
// deregisters or says of a check is undone after the next survey, with a read of that
// cluster alone.
func TestSurvey(t *testing.T) {
	n := 1000
	if underRace {
		n = 200
	}
	world(t, func(r *rig) {
		a := r.settled(n)
		whole := r.ofOne(0)
		for what, change := range map[string]func(service string){
			"nothing":     func(string) {},
			"the node":    func(service string) { r.consul.Deregister("pgsteer-"+service, "") },
			"an instance": func(service string) { r.consul.Deregister("pgsteer-"+service, ID(service, "n1")) },
			"the standby": func(service string) { r.consul.Deregister("pgsteer-"+service, ID(service, "n2")) },
			"a check": func(service string) {
				r.consul.SetCheck(consultest.Check{Node: "pgsteer-" + service, CheckID: ID(service, "n1"), ServiceID: ID(service, "n1"), ServiceName: service, Status: Critical})
			},
			"another node's": func(service string) {
				r.consul.Register(consultest.Service{Node: "pgsteer-" + service, Address: nodeAddress, ServiceID: ID(service, "n9"), ServiceName: service, ServiceTags: []string{RolePrimary}})
				r.consul.SetCheck(consultest.Check{Node: "pgsteer-" + service, CheckID: ID(service, "n9"), ServiceID: ID(service, "n9"), ServiceName: service, Status: Passing})
			},
		} {
			const changed = 3
			reads, all := r.asked("/health/service/"), r.consul.Asked()
			begin := time.Now()
			for i := range changed {
				change(fleetName(i))
			}
			r.until(surveyEvery+2*lookEvery, what, func() bool {
				return what == "nothing" && time.Since(begin) > surveyEvery+lookEvery ||
					what == "another node's" && strings.HasSuffix(r.ofOne(changed-1), "n9  critical") ||
					what != "nothing" && r.ofOne(0) == whole && r.ofOne(1) == whole && r.ofOne(changed-1) == whole
			})
			took := time.Since(begin)
			most := 2*int(took/readGap) + 10 // their moments are not even, and a thousand would be more
			reads, all = r.asked("/health/service/")-reads, r.consul.Asked()-all
			if t.Logf("%d clusters, %s: %d requests, %d of them reads, in %s", n, what, all, reads, took); reads > most {
				t.Errorf("%s: %d reads in %s, want %d at most", what, reads, took, most)
			}
			time.Sleep(goneFor + 3*surveyEvery)
		}
		if !a.whole() {
			t.Error("not all is whole")
		}
	})
}

// Surveys and reads together are two requests a second, and a survey that tells
// nothing, or what is not so, costs each cluster one read and no more.
func TestSurveyInVain(t *testing.T) {
	const n = 100
	for name, fault := range map[string]consultest.Fault{
		"fine": {}, "empty": {Empty: true}, "refused": {Status: http.StatusForbidden, Text: "Permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.settled(n)
				var fails atomic.Bool
				r.consul.Script(func(q consultest.Request) consultest.Fault {
					if q.Path == "/health/state/any" && fails.Load() {
						return fault
					}
					return consultest.Fault{}
				})
				fails.Store(true)
				time.Sleep(2 * surveyEvery) // what it costs once
				reads, surveys, begin := r.asked("/health/service/"), r.asked("/health/state/"), time.Now()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				took := time.Since(begin)
				reads, surveys = r.asked("/health/service/")-reads, r.asked("/health/state/")-surveys
				if want := int(took / surveyEvery); surveys < want-1 || surveys > want+1 {
					t.Errorf("%d surveys, want %d", surveys, want)
				}
				if want := int(took / readGap); reads+surveys < want*97/100 || reads+surveys > want*103/100 {
					t.Errorf("%d reads and %d surveys in %s, want %d together", reads, surveys, took, want)
				}
				if !a.whole() {
					t.Error("not all is whole")
				}
				fails.Store(false)
				time.Sleep(2 * surveyEvery)
				r.consul.Deregister("pgsteer-"+fleetName(1), "")
				r.until(surveyEvery+2*lookEvery, "one that is repaired", func() bool { return r.ofOne(1) == r.ofOne(0) })
			})
		})
	}
}

// Who publishes nothing surveys nothing, and instances of others are found when the
// cluster is read.
func TestSurveySeesItsOwn(t *testing.T) {
	const n = 50
	world(t, func(r *rig) {
		a := r.settled(n)
		b := r.startFleet("b", n, a.p.o.Views)
		time.Sleep(surveyEvery)
		before := r.asked("/health/state/")
		time.Sleep(10 * surveyEvery)
		if asked := r.asked("/health/state/") - before; asked < 9 || asked > 11 {
			t.Errorf("%d surveys in ten periods, want those of who publishes", asked)
		}
		r.consul.Register(consultest.Service{Node: "x", Address: "10.0.0.9", ServiceName: fleetName(3)})
		r.until(2*n*readGap, "word of the other one's", func() bool { return a.p.Status()[3].Err != nil })
		b.stop()
	})
}

// A survey that was asked for before a write and is answered after it tells nothing.
func TestSurveyOfBefore(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", func(o *Options) { o.ReadEvery = time.Hour })
		r.consul.Script(func(q consultest.Request) consultest.Fault {
			if q.Path == "/health/state/any" {
				return consultest.Fault{Delay: time.Second}
			}
			return consultest.Fault{}
		})
		a.see(n1Leads)
		r.within(2*time.Second, first)
		r.until(2*surveyEvery, "a survey", func() bool { return r.asked("/health/state/") == 1 })
		time.Sleep(100 * time.Millisecond)
		a.see(n2Leads)
		r.within(100*time.Millisecond, second)
		r.stays(3*surveyEvery, second)
		if reads := r.asked("/health/service/"); reads != 1 {
			t.Errorf("%d reads, want one", reads)
		}
	})
}

// What makes a survey differ from what stands.
func TestAgrees(t *testing.T) {
	stands := Registration{ID: "n1", Tags: []string{RolePrimary}, Check: Check{Status: Passing, Output: "writer", Notes: "x", TTL: time.Minute}}
	seen := sighting{Check{Status: Passing, Output: "writer", Notes: "x"}, []string{RolePrimary}}
	for what, change := range map[string]func(is map[string]sighting, s *sighting, r *Registration){
		"":          func(map[string]sighting, *sighting, *Registration) {},
		"status":    func(_ map[string]sighting, s *sighting, _ *Registration) { s.check.Status = Critical },
		"output":    func(_ map[string]sighting, s *sighting, _ *Registration) { s.check.Output = "replica" },
		"notes":     func(_ map[string]sighting, s *sighting, _ *Registration) { s.check.Notes = "y" },
		"tags":      func(_ map[string]sighting, s *sighting, _ *Registration) { s.tags = nil },
		"one more":  func(is map[string]sighting, _ *sighting, _ *Registration) { is["n2"] = seen },
		"a check":   func(_ map[string]sighting, _ *sighting, r *Registration) { r.Check = Check{} },
		"one fewer": func(_ map[string]sighting, s *sighting, _ *Registration) { *s = sighting{} },
	} {
		is, s, r := map[string]sighting{}, seen, stands
		if change(is, &s, &r); s.check.Status != "" {
			is["n1"] = s
		}
		if agrees(is, map[string]Registration{"n1": r}) != (what == "") {
			t.Errorf("%q: agrees %t", what, what != "")
		}
	}
}

// A real Consul shows the survey, with the rights of the manual, what is deregistered;
// changes of this agent's own raise no doubt. Here no cluster is read but for that.
func TestRealSurvey(t *testing.T) {
	r := newSite(t, lab.ConsulOptions{ACL: true})
	r.api(http.MethodPut, "acl/policy", fmt.Sprintf(`{"Name":"publish","Rules":%q}`, manual(t, "# external")))
	const secret = "2ab00000-0000-0000-0000-000000000000"
	r.api(http.MethodPut, "acl/token", `{"SecretID":"`+secret+`","Policies":[{"Name":"publish"}]}`)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	g := labtest.CountConsul(t, r.consul)
	count := func(path string) int {
		return g.Counts()[path]
	}
	client, err := consul.NewClient(consul.ClientOptions{Address: g.URL, TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	p := r.start(r.consul, file, func(o *Options) { o.Client, o.ReadEvery = client, time.Hour })
	defer p.stop()
	p.see(n1Leads)
	r.stands(soon, first)
	p.see(n2Leads)
	r.stands(soon, second)
	const surveys = "/v1/health/state/any"
	done := count(surveys) + 1
	r.within(2*surveyEvery, "a survey", func() bool { return count(surveys) >= done })
	pass(t.Context(), 2*lookEvery)
	if all := g.Counts(); all["/v1/health/service/main"] != 1 {
		t.Errorf("asked %v, want one read of what stands", all)
	}
	r.api(http.MethodPut, "catalog/deregister", `{"Node":"pgsteer-main","ServiceID":"pgsteer:main:n2"}`)
	r.stands(2*surveyEvery, second)
	r.within(soon, "word of the repair", func() bool { return p.Status()[0].Repairs == 1 && p.Status()[0].Err == nil })
}
