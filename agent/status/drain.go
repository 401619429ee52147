package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Drain is how far the ending of sessions at a node that is out is, without names.
type Drain struct {
	// Phase is one of those of package drain, Left and Ended count sessions; empty and
	// zero where another agent does it.
	Phase string `json:"phase,omitempty"`
	Left  int    `json:"left"`
	Ended int    `json:"ended"`
	// Over: nothing more happens.
	Over bool `json:"over"`
	// By is the host of the agent that does it, for people.
	By string `json:"by,omitempty"`
	// Deadline is when the waiting is over.
	Deadline time.Time `json:"deadline"`
	// EndIdle: sessions between two transactions end while others are waited for.
	EndIdle bool `json:"end_idle"`
	// Terminate: at the deadline the rest ends.
	Terminate bool `json:"terminate"`
}

// Words says how far it is, whom it ends and until when; of one that is over, what
// became of it alone.
func (d Drain) Words() string {
	var words []string
	far := fmt.Sprintf("%s, left: %d, ended: %d", d.Phase, d.Left, d.Ended)
	switch {
	case d.Over && d.Phase == "":
		return fmt.Sprintf("the time was over at %s; the agent at %s reports", d.Deadline.Format(time.RFC3339), cmp.Or(d.By, "another host"))
	case d.Over:
		return far
	case d.Phase != "":
		words = append(words, far)
	}
	if d.EndIdle {
		words = append(words, "idle ones end")
	}
	if d.Terminate {
		words = append(words, "all end at "+d.Deadline.Format(time.RFC3339))
	} else {
		words = append(words, "the rest is reported at "+d.Deadline.Format(time.RFC3339))
	}
	return strings.Join(words, ", ")
}
