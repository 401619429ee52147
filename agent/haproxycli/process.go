package haproxycli

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Process is a process of HAProxy as "show info" describes it.
type Process struct {
	PID    string // "" when the answer was none of "show info"
	Uptime int    // in seconds
	// Stopping: a reload has replaced the process; it lives for its sessions alone.
	Stopping bool
	Version  string
}

// ParseInfo reads the answer to "show info".
func ParseInfo(info string) (p Process) {
	for line := range strings.Lines(info) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "Pid":
			p.PID = value
		case "Uptime_sec":
			p.Uptime, _ = strconv.Atoi(value) // without it the number alone tells
		case "Stopping":
			p.Stopping = value != "0"
		case "Version":
			p.Version = value
		}
	}
	return p
}

// Replaces reports whether p came after another process. In a container the
// number may be the same at each start; then the one that is up for less long is
// the newer.
func (p Process) Replaces(old Process) bool {
	return old.PID != "" && (p.PID != old.PID || p.Uptime < old.Uptime)
}

// Processes are those that a master process has, by number.
type Processes struct {
	Workers map[int]bool
	Old     map[int]bool // workers that a reload replaced and that still have sessions
	Failed  int          // reloads that failed since the last good one
	Version string       // of the workers, "" when it is not told
}

// Has reports whether a worker is among them, old or not.
func (p Processes) Has(pid int) bool { return p.Workers[pid] || p.Old[pid] }

// Processes asks a master for its workers. Another socket's answer is an error.
func (s Socket) Processes(ctx context.Context) (Processes, error) {
	answer, err := s.Ask(ctx, "show proc")
	if err != nil {
		return Processes{}, err
	}
	p := ParseProcesses(answer)
	if len(p.Workers)+len(p.Old) == 0 {
		return p, fmt.Errorf("%s lists no worker; is it the master's socket (haproxy -S)?", s.Address)
	}
	return p, nil
}

// failedReloads stands in the master's line since 2.6.
var failedReloads = regexp.MustCompile(`\[failed: (\d+)\]`)

// ParseProcesses reads the table of "show proc": the master, then the workers
// under their headings.
func ParseProcesses(s string) Processes {
	p := Processes{Workers: map[int]bool{}, Old: map[int]bool{}}
	into := map[int]bool{} // what stands below no heading, or another one
	current := false       // below the heading of the workers that are not old
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			current = line == "# workers"
		}
		switch {
		case line == "# workers":
			into = p.Workers
		case line == "# old workers":
			into = p.Old
		case strings.HasPrefix(line, "#"):
			into = map[int]bool{}
		case len(words) < 2:
		case words[1] == "master":
			if m := failedReloads.FindStringSubmatch(line); m != nil {
				p.Failed, _ = strconv.Atoi(m[1])
			}
		case words[1] == "worker":
			if pid, err := strconv.Atoi(words[0]); err == nil {
				into[pid] = true
			}
			if last := words[len(words)-1]; current && versionText.MatchString(last) {
				p.Version = last
			}
		}
	}
	return p
}
