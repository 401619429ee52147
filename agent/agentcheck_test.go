package agent

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// told asks a port that answers for one server, without a word.
func told(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b, _ := io.ReadAll(c)
	return strings.TrimSpace(string(b))
}

// Words and bound ports follow a reload, on the ports that are open already.
func TestAgentCheckSettingsFollowAReload(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	port := freePort(t)
	write := func(settings string) {
		r.write(base, listen(), "agent_check: {"+settings+"}\n", "clusters:\n", clusterText("main", n1, n2))
	}
	write("ports: [{listen: " + port + ", server: main/primary/n1}]")
	r.up()
	r.settled("main", "n1", "n2")
	for _, tt := range []struct{ settings, bound, asked string }{
		{"", "up 100%", "down #in recovery"},
		{"admin_words: always, ports: [{listen: " + port + ", server: main/primary/n1}]", "ready up 100%", "maint down #in recovery"},
		{"admin_words: always, ports: [{listen: " + port + ", server: main/primary/n2}]", "maint down #in recovery", "maint down #in recovery"},
		{"ports: [{listen: " + port + ", server: main/primary/!guard}]", "down #open: n1 is up", "down #in recovery"},
	} {
		if tt.settings != "" {
			write(tt.settings)
			if err := r.reload(); err != nil {
				t.Fatal(err)
			}
		}
		if got := told(t, port); got != tt.bound {
			t.Errorf("%s: the bound port says %q, want %q", tt.settings, got, tt.bound)
		}
		if got := r.ask("main primary n2"); got != tt.asked {
			t.Errorf("%s: the common port says %q, want %q", tt.settings, got, tt.asked)
		}
	}
	write("")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", port); err == nil {
		_ = c.Close()
		t.Error("the bound port is still open")
	}
}

// Field report FR-15: a writer that is lost and comes back at once is down for
// min_down (1 s), so that every poll of an agent-inter of 500 ms sees it.
func TestEveryPollSeesALostWriter(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	const before, down, back = 0, 1, 2
	state, lastUp, firstBack := before, time.Time{}, time.Time{}
	r.until("n1 to be lost and back", func() bool {
		asked := time.Now()
		got := r.ask("main primary n1")
		switch up := strings.HasPrefix(got, "up 100%"); {
		case state == before && up:
			lastUp = asked
			n1.Set(func(s *pgState) { s.Probe = replica })
		case state == before:
			state = down
			n1.Set(func(s *pgState) { s.Probe = primary }) // it is good again before anybody looks
		case state == down && up:
			state, firstBack = back, time.Now()
		}
		return state == back
	})
	// The moments of the answers lie within these two.
	if d := firstBack.Sub(lastUp); d < time.Second {
		t.Errorf("n1 was away for %s at most, so that a poll of 500 ms may have missed it", d)
	}
}
