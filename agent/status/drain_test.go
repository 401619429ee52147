package status

import (
	"testing"
	"time"
)

// What is said of a drain: how far it is and whom it ends when, or what became of it;
// where another agent does it, who knows.
func TestDrainWords(t *testing.T) {
	d := Drain{By: "db1 (/var/lib/pgsteer)", Deadline: wall.Add(10 * time.Minute), EndIdle: true, Terminate: true}
	for _, tt := range []struct {
		change func(*Drain)
		want   string
	}{
		{func(*Drain) {}, "idle ones end, all end at 2026-03-01T12:10:00Z"},
		{func(d *Drain) { d.EndIdle = false }, "all end at 2026-03-01T12:10:00Z"},
		{func(d *Drain) { d.Over = true }, "the time was over at 2026-03-01T12:10:00Z; the agent at db1 (/var/lib/pgsteer) reports"},
		{func(d *Drain) { d.Over, d.By = true, "" }, "the time was over at 2026-03-01T12:10:00Z; the agent at another host reports"},
		{func(d *Drain) { d.Phase, d.Left, d.Ended = "waiting", 2, 1 }, "waiting, left: 2, ended: 1, idle ones end, all end at 2026-03-01T12:10:00Z"},
		{func(d *Drain) { d.Phase, d.Left, d.Terminate = "settling", 2, false }, "settling, left: 2, ended: 0, idle ones end, the rest is reported at 2026-03-01T12:10:00Z"},
		{func(d *Drain) { d.Phase, d.Over, d.Left, d.Ended = "left", true, 2, 1 }, "left, left: 2, ended: 1"},
		{func(d *Drain) { d.Phase, d.Over, d.Ended = "done", true, 3 }, "done, left: 0, ended: 3"},
	} {
		d := d
		tt.change(&d)
		if got := d.Words(); got != tt.want {
			t.Errorf("%+v: %q, want %q", d, got, tt.want)
		}
	}
}
