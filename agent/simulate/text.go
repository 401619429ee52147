package simulate

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// span is a duration that may be negative: an age, or a moment counted from the
// start of the scenario.
type span time.Duration

// UnmarshalText reads a duration with a unit, such as 2s, -1h or +30m; 0 needs none.
func (s *span) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 2s, 800ms, -1h", b)
	}
	*s = span(d)
	return nil
}

// position is a place in the write-ahead log.
type position topology.LSN

// UnmarshalText reads bytes (50000000) or PostgreSQL's text (0/2FAF080).
func (p *position) UnmarshalText(b []byte) error {
	if n, err := strconv.ParseUint(string(b), 10, 64); err == nil {
		*p = position(n)
		return nil
	}
	l, err := topology.ParseLSN(string(b))
	if err != nil {
		return fmt.Errorf("%q is neither a number of bytes nor an LSN like 0/3000060", b)
	}
	*p = position(l)
	return nil
}

// timeline is a PostgreSQL timeline; 0 is unknown.
type timeline topology.Timeline

// UnmarshalText reads a whole number of 32 bits.
func (t *timeline) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no timeline, a whole number", b)
	}
	*t = timeline(n)
	return nil
}

// text is a text that may hold anything, such as the error text of a record.
type text string

// UnmarshalText takes the text as it is.
func (t *text) UnmarshalText(b []byte) error {
	*t = text(b)
	return nil
}

// sourceID is a source of observations, written kind/name.
type sourceID topology.SourceID

// UnmarshalText reads kind/name, such as postgres/a; the name may hold slashes.
func (s *sourceID) UnmarshalText(b []byte) error {
	kind, name, ok := strings.Cut(string(b), "/")
	if !ok || kind == "" {
		return fmt.Errorf("%q is not kind/name, such as postgres/a", b)
	}
	*s = sourceID{Kind: topology.SourceKind(kind), Name: name}
	return nil
}

// failureClasses are the classes that a file may name.
var failureClasses = []topology.FailureClass{
	topology.FailRefused, topology.FailReset, topology.FailLost, topology.FailTimeout, topology.FailUnreachable, topology.FailName,
	topology.FailTLS, topology.FailAuth, topology.FailDatabase, topology.FailSlots, topology.FailShutdown, topology.FailStarting,
	topology.FailProtocol, topology.FailLocal, topology.FailDenied, topology.FailStore, topology.FailContent,
}

// ok is the word for a server that answers.
const ok = "ok"

// outcome is how a question ends: a failure class, or empty for an answer.
type outcome topology.FailureClass

// UnmarshalText reads ok, a failure class, hangs, or an SQLSTATE.
func (o *outcome) UnmarshalText(b []byte) error {
	word := string(b)
	switch {
	case word == ok:
		*o = ""
		return nil
	case word == "hangs":
		*o = outcome(topology.FailTimeout)
		return nil
	case isState(word):
		*o = outcome(classOfState(word))
		return nil
	}
	known := []string{ok, "hangs"}
	for _, c := range failureClasses {
		if string(c) == word {
			*o = outcome(c)
			return nil
		}
		known = append(known, string(c))
	}
	return fmt.Errorf("%s; an SQLSTATE such as 57P03 is possible too", config.UnknownWord(word, known))
}

// isState tells SQLSTATEs, five digits and capitals, from words.
func isState(s string) bool {
	return len(s) == 5 && strings.Trim(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// classOfState sorts an SQLSTATE as the probes do (package watchers/postgres).
func classOfState(state string) topology.FailureClass {
	switch {
	case state == "53300":
		return topology.FailSlots
	case state == "57P03":
		return topology.FailStarting
	case state == "57P01", state == "57P02":
		return topology.FailShutdown
	case state == "57P05":
		return topology.FailLost
	case state == "3D000":
		return topology.FailDatabase
	case strings.HasPrefix(state, "28"), state == "42501":
		return topology.FailAuth
	default:
		return topology.FailProtocol
	}
}

// isNull reports whether a value is written as null.
func isNull(v config.Value) bool { return v.Node() != nil && v.Node().Tag == "!!null" }
