package pgautofailover

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Answer is what one read of the monitor brings. What a version does not tell is
// nil.
type Answer struct {
	Version   *string  `json:"version"` // of the extension
	Uptime    *float64 `json:"uptime"`  // of the server, seconds
	Unhealthy *float64 `json:"unhealthy_after"`
	Grace     *float64 `json:"startup_grace"`
	Check     Check    `json:"check"`
	// Formation is nil when the monitor has none of that name.
	Formation *Formation `json:"formation"`
	Nodes     []Row      `json:"nodes"`
}

// Check are its settings health_check_*.
type Check struct {
	Period     *float64 `json:"period"` // seconds
	Timeout    *float64 `json:"timeout"`
	MaxRetries *int     `json:"max_retries"`
	RetryDelay *float64 `json:"retry_delay"`
}

// Formation is a row of the formation table.
type Formation struct {
	SyncStandbys int `json:"number_sync_standbys"`
}

// Row is a row of the node table.
type Row struct {
	ID          int64   `json:"nodeid"`
	Name        string  `json:"nodename"`
	Host        string  `json:"nodehost"`
	Port        uint16  `json:"nodeport"`
	SystemID    *int64  `json:"sysidentifier"` // nil until the node has one
	Goal        string  `json:"goalstate"`
	Reported    string  `json:"reportedstate"`
	Running     *bool   `json:"reportedpgisrunning"`
	Timeline    uint32  `json:"reportedtli"`
	Health      *int    `json:"health"` // -1 unknown, 0 bad, 1 good
	Priority    *int    `json:"candidatepriority"`
	Quorum      *bool   `json:"replicationquorum"`
	NodeCluster *string `json:"nodecluster"`

	// Made by the statement, by the monitor's clock.
	ReportAge *float64 `json:"report_age"` // seconds
	HealthAge *float64 `json:"health_age"`
	ChangeAge *float64 `json:"change_age"`
	Word      *int64   `json:"word"` // when a position was reported last, microseconds of its clock
}

// errNoNode is the fault of an answer as a whole.
var errNoNode = errors.New("it knows no node of the group")

// Parse reads the statement's answer. A fault of the whole is an error.
func Parse(b []byte) (Answer, error) {
	var a Answer
	if err := json.Unmarshal(b, &a); err != nil {
		return Answer{}, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return a, a.check()
}

func (a Answer) check() error {
	switch {
	case len(a.Nodes) == 0 && a.Formation == nil:
		return fmt.Errorf("%w: there is no such formation", errNoNode)
	case len(a.Nodes) == 0:
		return errNoNode
	}
	return nil
}

// span is a number of seconds; negative when it is not known.
func span(seconds *float64) time.Duration {
	if seconds == nil {
		return -1
	}
	return max(0, time.Duration(*seconds*float64(time.Second)))
}
