package agent

import (
	"sync"
	"time"
)

// burstInterval is the time between two questions for a node's role in a burst. A
// new writer waits for half of it on average before anybody can know of it.
const burstInterval = 10 * time.Millisecond

// burstMost is how many nodes of all clusters are asked at the pace of a burst at
// one time: at an interval of 10 ms, 15,000 empty queries a second. When everything
// fails at once, the clusters beyond it are asked every interval, as in calm times.
const burstMost = 150

// burstBudget is shared by the clusters of an agent. The zero value is whole.
type burstBudget struct {
	mu    sync.Mutex
	taken int
}

// hold exchanges what a cluster had of the budget for what it wants, and returns
// what it has then: all of it or nothing, since a cluster of which some nodes are
// asked seldom is no clearer.
func (b *burstBudget) hold(had, want int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= had
	if b.taken > 0 && b.taken+want > burstMost { // a cluster larger than the budget may have it alone
		return 0
	}
	b.taken += want
	return want
}
