package consul

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// FR-25: the answer with the lower index is not taken; the one after it is.
func TestWatchIndexBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		replies := []consultest.Fault{
			{Index: 900, Pairs: pairs("a", 900)},
			{Index: 400, Pairs: pairs("b", 400), NoBlock: true},
			{Index: 401, Pairs: pairs("b", 401), NoBlock: true},
		}
		a.Script(func(consultest.Request) consultest.Fault {
			if len(replies) == 0 {
				return consultest.Fault{Hang: true}
			}
			f := replies[0]
			replies = replies[1:]
			return f
		})
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		r.want("k=a", "k=b")
		var asked []uint64
		for _, q := range a.Requests() {
			asked = append(asked, q.Index)
		}
		if diff := cmp.Diff([]uint64{0, 900, 0, 401}, asked); diff != "" {
			t.Errorf("indexes asked (-want +got):\n%s", diff)
		}
		if s := r.watch.Stats(); s.Backwards != 1 || s.Deliveries != 2 {
			t.Errorf("stats %+v, want one step backwards and two deliveries", s)
		}
		r.stop()
	})
}

func TestWatchAfter500ALowerIndexIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		n := 0
		a.Script(func(consultest.Request) consultest.Fault {
			switch n++; n {
			case 1:
				return consultest.Fault{Index: 900, Pairs: pairs("a", 900)}
			case 2:
				return consultest.Fault{Status: 500, Text: "rpc error"}
			case 3:
				return consultest.Fault{Index: 30, Pairs: pairs("b", 30)}
			default:
				return consultest.Fault{Hang: true}
			}
		})
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		r.want("k=a", "!store", "k=b")
		r.stop()
	})
}

func TestWatchHangWithoutAByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(time.Minute)
		a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Hang: true} })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		a.Script(nil)
		ended := time.Since(r.began)
		first := r.nth(1)
		if limit := time.Minute + defaultWait + defaultWait/16 + 2*answerTimeout; first.r.Failure == nil || first.at > limit {
			t.Errorf("first failure %+v at %v, want a timeout before %v", first.r.Failure, first.at, limit)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"k=v", "!timeout", "k=v"}, compact(r.words())); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		// The question under way at the end still hangs to its deadline.
		if took := r.last().at - ended; took > answerTimeout+pauseHung {
			t.Errorf("good again %v after the hang, want at most %v", took, answerTimeout+pauseHung)
		}
		r.stop()
	})
}

func TestWatchResetInMidWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		once := true
		a.Script(func(q consultest.Request) consultest.Fault {
			if q.Index > 0 && once {
				once = false
				return consultest.Fault{Reset: true, ResetAfter: 10 * time.Second}
			}
			return consultest.Fault{}
		})
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		r.want("k=v", "!reset", "k=v")
		if got, want := r.last().r.ChangedAt, r.nth(0).r.ChangedAt; got != want {
			t.Errorf("the same value counts as changed at %v, want %v", got, want)
		}
		r.stop()
	})
}

func TestWatchRotatedToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n")
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		a.RequireToken("the-new-one")
		r := newWatchRig(t, ClientOptions{TokenFile: file}, a)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		write("the-new-one\n")
		rotated := time.Since(r.began)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"!denied", "k=v"}, compact(r.words())); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		if took := r.last().at - rotated; took > 2*time.Second {
			t.Errorf("the new token was used after %v, want 2s at most", took)
		}
		text := r.nth(0).r.Failure.Text
		for _, part := range []string{"x/", "127.0.0.1:8500", file, "403", "asking again"} {
			if !strings.Contains(text, part) {
				t.Errorf("failure %q does not tell %q", text, part)
			}
		}
		if strings.Contains(text, "old") {
			t.Errorf("failure %q shows the token", text)
		}
		r.stop()
	})
}

func TestWatchEmptyNeedsAWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(time.Second)
		// A restarted agent lists nothing for 2 s, a quorum knows better.
		a.Script(func(q consultest.Request) consultest.Fault {
			if q.Consistent {
				return consultest.Fault{}
			}
			return consultest.Fault{Empty: true, Index: 9999}
		})
		a.Acquire("x/k", "v", "s") // moves the index, not the value
		time.Sleep(2 * time.Second)
		a.Script(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		r.want("k=v")
		if s := r.watch.Stats(); s.EmptyRefused == 0 {
			t.Errorf("stats %+v, want a refused empty answer", s)
		}
		a.DeleteTree("x/")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		r.want("k=v", "(empty)")
		a.Put("x/k", "w")
		time.Sleep(time.Second)
		synctest.Wait()
		r.want("k=v", "(empty)", "k=w")
		r.stop()
	})
}

func TestWatchOldAnswers(t *testing.T) {
	cases := []struct {
		name  string
		fault func(n int, q consultest.Request) consultest.Fault
		want  []string
	}{
		{"no leader, a quorum answers", func(_ int, q consultest.Request) consultest.Fault {
			if q.Consistent {
				return consultest.Fault{}
			}
			return consultest.Fault{NoLeader: true, Pairs: pairs("old", 3)}
		}, []string{"unsure k=old", "k=v"}},
		{"no leader, no quorum", func(_ int, q consultest.Request) consultest.Fault {
			if q.Consistent {
				return consultest.Fault{Status: 500, Text: "No cluster leader"}
			}
			return consultest.Fault{NoLeader: true, Pairs: pairs("old", 3)}
		}, []string{"unsure k=old", "!store"}},
		{"last contact growing", func(n int, q consultest.Request) consultest.Fault {
			return consultest.Fault{LastContact: time.Duration(n) * 400 * time.Millisecond, NoBlock: true}
		}, []string{"k=v", "!store"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := consultest.New()
				a.Put("x/k", "v")
				n := 0
				a.Script(func(q consultest.Request) consultest.Fault { n++; return c.fault(n, q) })
				r := newWatchRig(t, ClientOptions{}, a)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				got := compact(r.words())
				got = got[:min(len(got), len(c.want))]
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
				r.stop()
			})
		})
	}
}

func TestWatchFilteredIsDenied(t *testing.T) {
	faults := map[string]consultest.Fault{
		"filtered":          {Empty: true, Filtered: true, NoBlock: true},
		"hidden, anonymous": {Empty: true, DefaultDeny: true, NoBlock: true},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := consultest.New()
				a.Put("x/k", "v")
				r := newWatchRig(t, ClientOptions{}, a)
				time.Sleep(time.Second)
				a.Script(func(consultest.Request) consultest.Fault { return f })
				a.Acquire("x/k", "v", "s") // moves the index, not the value
				time.Sleep(time.Minute)
				synctest.Wait()
				if diff := cmp.Diff([]string{"k=v", "!denied"}, compact(r.words())); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
				r.stop()
			})
		})
	}
}

func TestWatchMissingThenCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(20 * time.Second)
		created := time.Since(r.began)
		a.Put("x/k", "v")
		time.Sleep(time.Second)
		synctest.Wait()
		r.want("(empty)", "k=v")
		if took := r.last().at - created; took != 0 {
			t.Errorf("the new key was told after %v, want at once", took)
		}
		r.stop()
	})
}

func TestWatchManyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		r := newWatchRig(t, ClientOptions{}, a)
		for i := range 3000 { // 30 s
			a.Put("x/k", time.Duration(i).String())
			time.Sleep(10 * time.Millisecond)
		}
		a.Put("x/k", "last")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(r.words()); n > 31+watchBurst {
			t.Errorf("%d deliveries in 31 s, want at most one a second", n)
		}
		if got := r.last().r.Value; got != "k=last" {
			t.Errorf("last delivery %q, want the last change", got)
		}
		r.stop()
	})
}

func TestWatchCrossCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		index := a.Index()
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if s := r.watch.Stats(); s.CrossChecks < 2 || s.Missed != 0 {
			t.Errorf("stats %+v, want two cross-checks without a difference", s)
		}
		a.Script(func(q consultest.Request) consultest.Fault {
			if q.Index == 0 {
				return consultest.Fault{Pairs: pairs("new", index), Index: index}
			}
			return consultest.Fault{}
		})
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		r.want("k=v", "k=new")
		if s := r.watch.Stats(); s.Missed != 1 {
			t.Errorf("stats %+v, want one missed change", s)
		}
		r.stop()
	})
}

func TestWatchEndsFromEveryWait(t *testing.T) {
	cases := []struct {
		name  string
		after time.Duration
		fault consultest.Fault
	}{
		{"blocking query", 10 * time.Second, consultest.Fault{}},
		{"hanging query", 2 * time.Second, consultest.Fault{Hang: true}},
		{"back-off", 20 * time.Second, consultest.Fault{Status: 403}},
		{"token bucket", 10*time.Second + 500*time.Millisecond, consultest.Fault{NoBlock: true}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := consultest.New()
				a.Put("x/k", "v")
				a.Script(func(consultest.Request) consultest.Fault { return c.fault })
				r := newWatchRig(t, ClientOptions{}, a)
				time.Sleep(c.after)
				synctest.Wait()
				r.stop()
				n := len(r.words())
				time.Sleep(time.Minute)
				if len(r.words()) != n {
					t.Error("something was delivered after Run had returned")
				}
			})
		})
	}
}

func TestWatchRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		a.Put("x/k", "v")
		a.Script(func(q consultest.Request) consultest.Fault { return consultest.Fault{Hang: q.Index > 0} })
		r := newWatchRig(t, ClientOptions{}, a)
		time.Sleep(time.Second)
		a.Put("x/k", "w")
		a.Script(nil)
		r.watch.Restart()
		time.Sleep(time.Second)
		synctest.Wait()
		r.want("k=v", "k=w")
		if s := r.watch.Stats(); s.Failures != 0 || s.Restarts != 1 {
			t.Errorf("stats %+v, want a restart that is no failure", s)
		}
		r.stop()
	})
}
