package simulate

import (
	"context"
	"errors"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// ErrStopped is the error of a run that was ended from outside.
var ErrStopped = errors.New("stopped; what follows was not played")

// RunContext is Run until ctx ends; then the error is ErrStopped and says at
// which time of the scenario.
func (s *Scenario) RunContext(ctx context.Context) (*Result, error) {
	return s.play(ctx, func(topology.Observation) {})
}

func (r *run) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}
