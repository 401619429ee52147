package admin

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// table is a store that two agents share. Once, right after an agent has read it, the
// other one writes.
type table struct {
	mu        sync.Mutex // guards everything below
	text      []byte
	writes    int
	meanwhile func()
}

func (s *table) String() string { return "the table" }

func (s *table) Change(_ context.Context, edit func([]byte) ([]byte, error)) error {
	for {
		s.mu.Lock()
		text, writes, other := s.text, s.writes, s.meanwhile
		s.meanwhile = nil
		s.mu.Unlock()
		next, err := edit(text)
		if other != nil {
			other()
		}
		s.mu.Lock()
		same := writes == s.writes
		if same && err == nil && next != nil {
			s.text, s.writes = next, writes+1
		}
		s.mu.Unlock()
		if same || err != nil || next == nil {
			return err
		}
	}
}

// judged is a rig whose cluster main has the primary n1 and two replicas; nobody decides
// anew but the test.
func judged(t *testing.T, shared maintenance.Shared) *rig {
	t.Helper()
	r := newRig(t)
	r.o.Book = maintenance.Open(maintenance.Options{
		Path: filepath.Join(t.TempDir(), "maintenance.json"), Read: os.ReadFile, Now: func() time.Time { return r.now }, Changed: func() {},
	})
	r.o.Book.Share(shared)
	r.tokens = Tokens{Admins: parsed(t, "ann admin-0123456789")}
	p := topology.DefaultPolicy()
	p.Pools = []topology.Pool{{Name: "primary", Mode: topology.ModeWrite}, {Name: "strict", Mode: topology.ModeRead}}
	r.o.Policy = func(string) topology.Policy { return p }
	r.decide("n1", nil)
	return r
}

// decide publishes a decision; out are the nodes that it shows as out for maintenance.
func (r *rig) decide(writer string, facts *topology.Facts, out ...string) {
	s := &topology.Snapshot{Complete: true, Writer: writer, Pools: []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "strict", Mode: topology.ModeRead}}}
	for _, name := range []string{"n1", "n2", "n3"} {
		v := topology.NodeVerdict{Node: name, Verdict: topology.Up}
		for _, o := range out {
			if o == name {
				v.Verdict, v.Reasons = topology.Drain, []topology.Reason{{Code: topology.CodeMaintenance}}
			}
		}
		s.Nodes = append(s.Nodes, topology.Node{Name: name})
		if name != "n1" {
			s.Pools[1].Nodes = append(s.Pools[1].Nodes, v)
			v = topology.NodeVerdict{Node: name, Verdict: topology.Down}
		}
		s.Pools[0].Nodes = append(s.Pools[0].Nodes, v)
	}
	r.o.Views.Set("main", &topology.View{Snapshot: s, Facts: facts, ValidUntil: r.o.Now().Mono.Add(24 * time.Hour)})
}

// post makes a change and wants a code, and words in the answer.
func (r *rig) post(t *testing.T, path, body string, code int, want string) {
	t.Helper()
	r.now = r.now.Add(time.Second)
	w := r.change("POST", "/admin/maintenance/"+path, "Bearer admin-0123456789", body)
	if w.Code != code || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%s %s: %d %s, want %d with %s", path, body, w.Code, w.Body, code, want)
	}
}

func (r *rig) isOut(t *testing.T, node string, want bool) {
	t.Helper()
	var s State
	if err := json.Unmarshal(r.change("GET", "/admin/maintenance/main/"+node, "Bearer admin-0123456789", "").Body.Bytes(), &s); err != nil || s.Enabled != want {
		t.Errorf("%s is out: %t, want %t (%v)", node, s.Enabled, want, err)
	}
}

const emptied = "pool strict is left without a node that takes new sessions. Nothing was changed; with force it is taken out"

// Two changes that do no harm alone, and empty a pool together, are not both made: the
// second is judged on the first, before any decision shows it.
func TestChangesAreJudgedTogether(t *testing.T) {
	r := judged(t, nil)
	r.post(t, "main/n2", "", 200, Entered)
	r.post(t, "main/n3", "", 409, emptied)
	r.isOut(t, "n3", false)
	r.post(t, "main/n3?pool=strict", "", 409, emptied)
	r.post(t, "main/n3", `{"force":true}`, 200, Entered)

	r = judged(t, nil)
	r.post(t, "main?pool=strict", `{"force":true}`, 200, Entered)
	r.post(t, "main/n3", "", 200, Entered) // it empties nothing any more
}

// The same of two agents, also when both have looked before either wrote.
func TestChangesOfTwoAgentsAreJudgedTogether(t *testing.T) {
	s := new(table)
	a, b := judged(t, s), judged(t, s)
	s.meanwhile = func() { b.post(t, "main/n3", "", 200, Entered) }
	a.post(t, "main/n2", "", 409, emptied)
	a.isOut(t, "n2", false)
	a.isOut(t, "n3", true)
	if strings.Contains(string(s.text), "n2") || s.writes != 1 {
		t.Errorf("after %d writes the store has %s", s.writes, s.text)
	}
	// What the other one has put back is judged by the store, not by the copy.
	if w := b.change("DELETE", "/admin/maintenance/main/n3", "Bearer admin-0123456789", ""); w.Code != 200 {
		t.Fatal(w.Body)
	}
	a.post(t, "main/n2", "", 200, Entered)
}

// A target that is out already is judged anew by what it has become: its sessions are not
// cut, and it does not stay out for longer, without force. Words, and an earlier end, are.
func TestWhatIsOutIsJudgedAnew(t *testing.T) {
	r := judged(t, nil)
	r.post(t, "main/n2", `{"for":"1h"}`, 200, Entered)
	r.decide("", nil, "n2")
	v := *r.o.Views.Get("main")
	snap := *v.Snapshot
	snap.Authority.Leader = "n2"
	v.Snapshot = &snap
	r.o.Views.Set("main", &v)
	const stays = "main/n2 stays out as it is, and what was asked for beside that was not done: n2 is the primary"
	for _, body := range []string{`{"drain":"1s"}`, `{"drain":"1s","terminate":true}`, `{"drain":"1s","end_idle":true}`, `{"for":"2h"}`} {
		r.post(t, "main/n2", body, 409, stays)
	}
	r.post(t, "main/n2", `{"drain":"1m","keep":true}`, 409, "could not be drained: this agent drains no server") // harms nobody, or it were told before
	r.post(t, "main/n2", `{"reason":"disk"}`, 200, AlreadyIn)
	r.post(t, "main/n2", `{"for":"30m"}`, 200, AlreadyIn)
	r.post(t, "main/n2", ``, 200, AlreadyIn)
	if rec, _ := r.o.Book.Set().Get(maintenance.Target{Cluster: "main", Node: "n2"}); !rec.DrainUntil.IsZero() || rec.Sessions != (maintenance.Sessions{}) || rec.Until.After(r.now.Add(30*time.Minute)) {
		t.Errorf("the record is %+v", rec)
	}
	r.post(t, "main/n2", `{"drain":"1s","force":true}`, 200, AlreadyIn)
	// A replica that is out is drained, while another one serves.
	r = judged(t, nil)
	r.post(t, "main/n2", ``, 200, Entered)
	r.decide("n1", nil, "n2")
	r.post(t, "main/n2", `{"drain":"1s"}`, 200, AlreadyIn)
}

// Without an authority nobody names a primary that is out; its own word does.
func TestThePrimaryThatIsOutIsJudgedByItsWord(t *testing.T) {
	r := judged(t, nil)
	r.post(t, "main/n1", `{"force":true}`, 200, Entered)
	r.decide("", &topology.Facts{Nodes: map[string]topology.NodeFacts{"n1": {InRecovery: topology.No}, "n2": {InRecovery: topology.Yes}}}, "n1")
	r.post(t, "main?pool=primary", `{"drain":"1s"}`, 409, "n1 is the primary")
	r.post(t, "main/n1", `{"drain":"1s"}`, 409, "n1 is the primary")
	r.post(t, "main/n2", `{"drain":"1s"}`, 200, Entered)
}

// The time for sessions ends before the maintenance does, also where the two come by two
// requests; the server is not asked for what cannot be.
func TestDrainEndsBeforeTheMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newDrainRig(t)
		const why = "drain must be shorter than for: with the maintenance its drain ends too; nothing was changed"
		for _, step := range []struct {
			body string
			code int
			want string
		}{
			{`{"for":"10m","drain":"10m","terminate":true}`, 400, why},
			{`{"for":"10m"}`, 200, Entered},
			{`{"drain":"20m","terminate":true}`, 400, why},
			{`{"drain":"20m","end_idle":true,"force":true}`, 400, why},
			{`{"drain":"20m","for":"30m","terminate":true}`, 200, AlreadyIn},
			{`{"for":"15m"}`, 400, why},
			{`{"reason":"disk"}`, 200, AlreadyIn},
			{`{"for":"15m","drain":"5m","terminate":true}`, 200, AlreadyIn},
		} {
			time.Sleep(time.Second)
			synctest.Wait()
			before, _ := r.phase()
			if code, text := r.ask("POST", "main/n2", step.body); code != step.code || !strings.Contains(text, step.want) {
				t.Errorf("%s: %d %s, want %d %s", step.body, code, text, step.code, step.want)
			}
			if after, _ := r.phase(); step.code != 200 && after.ID != before.ID {
				t.Errorf("%s: a refused drain is %+v", step.body, after)
			}
		}
		rec, _ := r.book.Set().Get(maintenance.Target{Cluster: "main", Node: "n2"})
		if !rec.Sessions.Deadline.Before(rec.Until) {
			t.Errorf("the record is %+v", rec)
		}
	})
}

// Times that a release of before has let pass refuse no other change.
func TestTimesThatStandRefuseNothing(t *testing.T) {
	r := judged(t, nil)
	n2 := maintenance.Target{Cluster: "main", Node: "n2"}
	ends := maintenance.Sessions{ID: "x", Deadline: noon.Add(time.Hour), Terminate: true}
	err := r.o.Book.Change(t.Context(), n2, func(s maintenance.Set) (maintenance.Set, bool) {
		next, _, changed := s.Start(maintenance.Record{Target: n2, Until: noon.Add(time.Minute), Sessions: ends}, noon)
		return next, changed
	})
	if err != nil {
		t.Fatal(err)
	}
	r.post(t, "main/n2", `{"reason":"disk"}`, 200, AlreadyIn)
	r.post(t, "main/n2", `{"for":"30m"}`, 400, "drain must be shorter than for")
	r.post(t, "main/n2", `{"drain":"10s"}`, 200, AlreadyIn)
}
