package runtimeapi

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUrgentAtOnceOthersSettle(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up, up)))
		if got := f.heard(); len(got) != 4 {
			t.Fatalf("a new cluster is told %q, want 4 commands at once", got)
		}
		show(views, snapshot(2, 2, replicas(down, up)))
		if got := f.heard(); len(got) != 2 {
			t.Fatalf("an urgent change is told %q, want 2 commands at once", got)
		}
		show(views, snapshot(3, 2, replicas(drain, up)))
		time.Sleep(199 * time.Millisecond)
		if got := f.heard(); len(got) != 0 {
			t.Fatalf("before it settled: %q", got)
		}
		time.Sleep(time.Millisecond)
		want := []string{"set server be_main_replica/n1 weight 0%", "set server be_main_replica/n1 agent up"}
		if diff := cmp.Diff(want, f.heard()); diff != "" {
			t.Error(diff)
		}
		if got := p.Status()[0].Applied["main"]; got != 3 {
			t.Errorf("applied generation %d, want 3", got)
		}
	})
}

func TestSettlingEnds(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], _ *Pusher, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up, up)))
		f.heard()
		start, g := time.Now(), uint64(2)
		for len(f.heard()) == 0 { // changes every 100 ms and never comes to rest
			r := replicas(up, up)
			r.Nodes[0].Weight = int(g%90) + 1
			show(views, snapshot(g, 1, r))
			g++
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start); took < 1900*time.Millisecond || took > 2200*time.Millisecond {
			t.Errorf("told after %s, want after the longest settling of 2 s", took)
		}
	})
}

func TestInvalidViewIsNotTold(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], _ *Pusher, _ *strings.Builder) {
		s := snapshot(1, 1, replicas(down))
		views.Set("main", &topology.View{Snapshot: s, ValidUntil: 1})
		time.Sleep(5 * time.Second)
		if got := f.heard(); len(got) != 0 {
			t.Errorf("told %q from a view past its end", got)
		}
		views.Refresh("main", &topology.View{Snapshot: s, ValidUntil: 1 << 62})
		time.Sleep(time.Second)
		if got := f.heard(); len(got) != 2 {
			t.Errorf("told %q when the view is valid again, want 2 commands", got)
		}
	})
}

func TestUnreachableSocketGetsTheNewest(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		f.set(func() { f.refuses = true })
		show(views, snapshot(1, 1, replicas(up, down)))
		time.Sleep(time.Minute)
		synctest.Wait()
		st := p.Status()[0]
		if st.Err == nil || len(st.Applied) != 0 {
			t.Errorf("status of a dead socket: %+v", st)
		}
		if n := len(f.dials); n < 12 || n > 25 {
			t.Errorf("%d attempts in a minute, want a back-off from 100 ms to 5 s", n)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log)
		}
		show(views, snapshot(2, 1, replicas(down, up)))
		f.set(func() { f.refuses = false })
		time.Sleep(6 * time.Second)
		want := []string{
			"set server be_main_replica/n1 agent down", "shutdown sessions server be_main_replica/n1",
			"set server be_main_replica/n2 weight 100%", "set server be_main_replica/n2 agent up",
		}
		if diff := cmp.Diff(want, f.heard()); diff != "" {
			t.Error(diff)
		}
		if st := p.Status()[0]; st.Err != nil || st.Applied["main"] != 2 {
			t.Errorf("status after it came back: %+v", st)
		}
	})
}

func TestUrgentChangeBreaksTheBackOff(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], _ *Pusher, _ *strings.Builder) {
		f.set(func() { f.refuses = true })
		show(views, snapshot(1, 1, replicas(up)))
		time.Sleep(time.Minute)
		f.set(func() { f.refuses = false })
		show(views, snapshot(2, 2, replicas(down)))
		if got := f.heard(); len(got) != 2 {
			t.Errorf("told %q, want 2 commands at once", got)
		}
	})
}

// A change with nothing to tell asks nobody, so it is no sign that HAProxy is well.
func TestNothingToTellIsNoSuccess(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		f.set(func() { f.refuses = true })
		time.Sleep(1500 * time.Millisecond)
		for generation := range uint64(3) {
			show(views, snapshot(generation+1, generation+1, replicas(topology.Undecided)))
			synctest.Wait()
		}
		if st := p.Status()[0]; st.Err == nil || strings.Contains(log.String(), "told everything again") {
			t.Errorf("a socket that refuses counts as well: %v\n%s", st.Err, log)
		}
	})
}

func TestHangingSocketIsToldAgain(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		f.set(func() { f.hangs = true })
		show(views, snapshot(1, 1, replicas(down)))
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if p.Status()[0].Err == nil {
			t.Error("a socket that hangs for longer than the timeout is no error")
		}
		f.set(func() { f.hangs = false })
		time.Sleep(3 * time.Second)
		if got := f.heard(); len(got) != 2 {
			t.Errorf("told %q, want 2 commands", got)
		}
	})
}

func TestNewProcessIsToldEverything(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		show(views, snapshot(1, 1, pool("primary", topology.ModeWrite, up, down)))
		f.heard()
		time.Sleep(10 * time.Second)
		if got := f.heard(); len(got) != 0 {
			t.Fatalf("told %q without a reason", got)
		}
		f.set(func() { f.pid = 2 })
		time.Sleep(time.Second)
		if got := f.heard(); len(got) != 5 {
			t.Errorf("a new process is told %q, want all 5 commands", got)
		}
		f.set(func() { f.pid = 3 }) // and in the moment of a change
		show(views, snapshot(2, 2, pool("primary", topology.ModeWrite, down, up)))
		f.heard()
		want := map[string]string{
			"be_main_primary/n1": "agent down", "be_main_primary/n2": "agent up", "guard_main_primary/g": "agent down",
		}
		if diff := cmp.Diff(want, f.state); diff != "" {
			t.Error(diff)
		}
		if st := p.Status()[0]; st.Process != "3" || st.Applied["main"] != 2 {
			t.Errorf("status %+v", st)
		}
	})
}

// A container's process has the same number at each start.
func TestNewProcessOfTheSameNumber(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], _ *Pusher, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up)))
		f.heard()
		time.Sleep(10 * time.Second)
		f.set(func() { f.started = time.Now() })
		time.Sleep(time.Second)
		if got := f.heard(); len(got) != 2 {
			t.Errorf("a new process is told %q, want 2 commands", got)
		}
	})
}

// What a new process could not be told, since the view was past its end, is
// told once the view is valid again, though nothing was decided meanwhile.
func TestNewProcessWhileTheViewIsInvalid(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], _ *Pusher, _ *strings.Builder) {
		s := snapshot(1, 1, replicas(up))
		show(views, s)
		f.heard()
		views.Refresh("main", &topology.View{Snapshot: s, ValidUntil: 1})
		f.set(func() { f.pid = 2 })
		time.Sleep(5 * time.Second)
		if got := f.heard(); len(got) != 0 {
			t.Errorf("told %q from a view past its end", got)
		}
		views.Refresh("main", &topology.View{Snapshot: s, ValidUntil: 1 << 62})
		time.Sleep(time.Second)
		if got := f.heard(); len(got) != 2 {
			t.Errorf("told %q when the view is valid again, want 2 commands", got)
		}
	})
}

func TestBadAnswersAreExplainedOnceAndToldAgain(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		f.set(func() { f.missing = map[string]bool{"be_main_replica/n2": true} })
		show(views, snapshot(1, 1, replicas(up, up)))
		if got, st := f.heard(), p.Status()[0]; len(got) != 2 || st.Err != nil || len(st.Applied) != 0 {
			t.Errorf("a server that may be added in a moment: told %q, status %+v", got, st)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		st := p.Status()[0]
		if st.Err == nil || !strings.Contains(st.Err.Error(), "does not have this server") || len(st.Applied) != 0 {
			t.Errorf("status %+v", st)
		}
		time.Sleep(5 * time.Minute)
		if n := len(f.heard()); n < 4*5 || n > 4*12 {
			t.Errorf("%d commands in 5 minutes, want everything again after 5 s, doubling to a minute", n)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log)
		}
		f.set(func() { f.missing = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := p.Status()[0]; st.Err != nil || st.Applied["main"] != 1 {
			t.Errorf("status once the server exists: %+v", st)
		}
	})
}

func TestClusterThatIsNoLongerConfiguredIsLeftAlone(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up)))
		f.heard()
		views.Delete("main")
		time.Sleep(10 * time.Second)
		if got := f.heard(); len(got) != 0 {
			t.Errorf("told %q", got)
		}
		if st := p.Status()[0]; len(st.Applied) != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// Without the right to command, one line says what to write into HAProxy's file.
func TestLevelIsExplainedOnce(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		f.set(func() { f.level = "operator" })
		show(views, snapshot(1, 1, replicas(up, up, up, up, up)))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		st := p.Status()[0]
		if st.Err == nil || !strings.Contains(st.Err.Error(), `"level operator"`) || len(st.Applied) != 0 {
			t.Errorf("status %+v", st)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log)
		}
		f.heard()
		f.set(func() { f.level, f.pid = "", 2 }) // its file is mended and it is reloaded
		time.Sleep(6 * time.Second)
		if got := f.heard(); len(got) != 10 || p.Status()[0].Err != nil {
			t.Errorf("told %q, status %+v", got, p.Status()[0])
		}
	})
}

// A process that a reload is just replacing answers for a moment. What it
// confirms is worth nothing to the next one.
func TestAnswersOfAnEndingProcessDoNotCount(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, log *strings.Builder) {
		show(views, snapshot(1, 1, replicas(up, up)))
		f.heard()
		f.set(func() { f.ending = true })
		show(views, snapshot(2, 2, replicas(down, up)))
		f.heard()
		if st := p.Status()[0]; st.Applied["main"] != 1 {
			t.Errorf("applied generation %d, want 1: nobody who stays was told", st.Applied["main"])
		}
		f.set(func() { f.ending, f.pid = false, 2 })
		time.Sleep(300 * time.Millisecond)
		if got := f.heard(); len(got) < 4 || p.Status()[0].Applied["main"] != 2 {
			t.Errorf("the new process is told %q, status %+v", got, p.Status()[0])
		}
		if strings.Contains(log.String(), "level=WARN") {
			t.Errorf("a reload is no trouble:\n%s", log)
		}
	})
}

func TestSessionsOfWhatIsNotUpAreCounted(t *testing.T) {
	bubble(t, func(f *fakeHAProxy, views *latest.Map[string, topology.View], p *Pusher, _ *strings.Builder) {
		for _, c := range []struct {
			n1, n2 topology.Verdict
			want   Sessions
		}{{up, up, Sessions{}}, {down, drain, Sessions{Down: 3, Draining: 4}}, {up, undecided, Sessions{}}} {
			show(views, snapshot(1, 1, replicas(c.n1, c.n2)))
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if got := p.Status()[0].Sessions; got != c.want {
				t.Errorf("n1 %s, n2 %s: %+v, want %+v", c.n1, c.n2, got, c.want)
			}
		}
	})
}
