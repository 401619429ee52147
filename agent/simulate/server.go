package simulate

import (
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
)

// server is the truth about one node: what a direct connection to it finds. A
// nil field has the value of a healthy node of its role.
type server struct {
	fails outcome // of every probe; empty: it answers

	recovery, readOnly   *bool
	tli                  *timeline
	lsn, replay, receive *position
	receiver             *string
	receiverTLI          *timeline
	latestEnd            *position
	messageAge           *span
	sender               *string
	paused               *bool
	applyDelay           *time.Duration
	upstream             *bool
	systemID             *uint64
	startedAt            *span // scenario time
	syncWaiters          *int64
	replication          *[]replicaRow
	ports                map[uint16]outcome
	write, login         *outcome
	local                *bool
	failingAt            time.Duration // since when it fails as it does, in scenario time
}

// replicaRow is a row of pg_stat_replication.
type replicaRow struct {
	Name      string   `yaml:"name"`
	State     string   `yaml:"state"`
	SyncState string   `yaml:"sync_state"`
	Replay    position `yaml:"replay"`
}

// The states of a WAL receiver that a file may name.
const (
	receiverStreaming = "streaming"
	receiverStarting  = "starting"
	receiverNone      = "none"
	receiverUnknown   = "unknown" // the probe role may not see it
)

var receiverStates = []string{receiverStreaming, receiverStarting, receiverNone, receiverUnknown}

// change is one difference that a step makes to a server.
type change func(*server)

// field reads a value into a field; null gives it back to its default.
func field[T any](at func(*server) **T) func(config.Value) change {
	return func(v config.Value) change {
		if isNull(v) {
			return func(s *server) { *at(s) = nil }
		}
		x := new(T)
		v.Into(x)
		return func(s *server) { *at(s) = x }
	}
}

// serverKeys are the keys of a node below sql.
var serverKeys = map[string]func(config.Value) change{
	"recovery":     field(func(s *server) **bool { return &s.recovery }),
	"read_only":    field(func(s *server) **bool { return &s.readOnly }),
	"tli":          field(func(s *server) **timeline { return &s.tli }),
	"lsn":          field(func(s *server) **position { return &s.lsn }),
	"replay":       field(func(s *server) **position { return &s.replay }),
	"receive":      field(func(s *server) **position { return &s.receive }),
	"walreceiver":  receiverState,
	"receiver_tli": field(func(s *server) **timeline { return &s.receiverTLI }),
	"latest_end":   field(func(s *server) **position { return &s.latestEnd }),
	"message_age":  field(func(s *server) **span { return &s.messageAge }),
	"sender":       field(func(s *server) **string { return &s.sender }),
	"paused":       field(func(s *server) **bool { return &s.paused }),
	"apply_delay":  field(func(s *server) **time.Duration { return &s.applyDelay }),
	"upstream":     field(func(s *server) **bool { return &s.upstream }),
	"system_id":    field(func(s *server) **uint64 { return &s.systemID }),
	"started_at":   field(func(s *server) **span { return &s.startedAt }),
	"sync_waiters": field(func(s *server) **int64 { return &s.syncWaiters }),
	"replication":  field(func(s *server) **[]replicaRow { return &s.replication }),
	"local":        field(func(s *server) **bool { return &s.local }),
	"ports":        portOutcomes,
	"write":        field(func(s *server) **outcome { return &s.write }),
	"login":        field(func(s *server) **outcome { return &s.login }),
	"fails":        failureWord,
}

func receiverState(v config.Value) change {
	set := field(func(s *server) **string { return &s.receiver })(v)
	if word, written := v.Text(); written && !slices.Contains(receiverStates, word) {
		v.Fault("%s", config.UnknownWord(word, receiverStates))
	}
	return set
}

// portOutcomes merges the pools' own ports, port by port.
func portOutcomes(v config.Value) change {
	var set map[uint16]outcome
	v.Into(&set)
	return func(s *server) {
		s.ports = maps.Clone(s.ports)
		if set == nil {
			s.ports = nil
		} else if s.ports == nil {
			s.ports = make(map[uint16]outcome)
		}
		maps.Copy(s.ports, set)
	}
}

// failureWord is how every probe ends from now on. What the node would say
// stays for when it answers again.
func failureWord(v config.Value) change {
	var o outcome
	v.Into(&o)
	return func(s *server) { s.fails = o }
}

// serverChange reads what a step says of a node: a word, or a map of keys. A map
// without the key fails says that the node answers.
func serverChange(v config.Value) []change {
	if _, word := v.Text(); word {
		return []change{failureWord(v)}
	}
	changes := []change{func(s *server) { s.fails = "" }}
	for key, below := range v.Entries() {
		read, known := serverKeys[key]
		if !known {
			below.Fault("unknown key: %s", config.UnknownWord(key, slices.Sorted(maps.Keys(serverKeys))))
			continue
		}
		changes = append(changes, read(below))
	}
	return changes
}
