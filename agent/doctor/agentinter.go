package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// defaultAgentInter is HAProxy's own, whatever inter says (measured: 2.6).
const defaultAgentInter = 2 * time.Second

// polling is what default-server lines say of agent checks.
type polling struct {
	check bool
	inter string          // empty: not said
	at    haproxycfg.Line // the line that says it
}

// with is polling with the words of one more line.
func (p polling) with(l haproxycfg.Line) polling {
	for i, w := range l.Words {
		switch {
		case w == "agent-check":
			p.check = true
		case w == "no-agent-check":
			p.check = false
		case w == "agent-inter" && i+1 < len(l.Words):
			p.inter, p.at = l.Words[i+1], l
		}
	}
	return p
}

// slowPolls finds servers that are asked about more rarely than every half of min_down:
// a poll may miss that the writer was lost (field report FR-15).
func (t *haproxyText) slowPolls(clusters config.Clusters) (all []Result) {
	var defaults, own polling
	elsewhere := slices.ContainsFunc(t.lines, func(l haproxycfg.Line) bool {
		return l.Section == "defaults" && l.Words[0] == "default-server" && slices.Contains(l.Words, "agent-inter")
	})
	told := make(map[string]bool)
	for _, l := range t.lines {
		switch l.Words[0] {
		case "defaults":
			defaults, own = polling{}, polling{}
		case "backend", "listen":
			own = defaults
		case "default-server":
			own = own.with(l)
			if l.Section == "defaults" {
				defaults = own
			}
		case "server", "server-template":
			p := own.with(l)
			if p.inter == "" && !elsewhere { // else this section may have another file's defaults
				p.inter, p.at = defaultAgentInter.String(), l
			}
			if r, slow := p.judge(l, clusters); slow && !told[r.Subject] {
				told[r.Subject] = true
				all = append(all, r)
			}
		}
	}
	return all
}

// judge compares the time between two polls about a server with the min_down of its
// cluster, or with the shortest where the line names none.
func (p polling) judge(server haproxycfg.Line, clusters config.Clusters) (Result, bool) {
	inter, ok := haproxyTime(p.inter)
	cl := shortest(clusters, agentSend(server))
	if !p.check || !ok || cl == nil || 2*inter <= cl.Policy.MinDown {
		return Result{}, false
	}
	said := "agent-inter " + p.inter
	if !slices.Contains(p.at.Words, "agent-inter") {
		said = "without agent-inter HAProxy asks every " + p.inter + ", which"
	}
	return Result{
		Subject: p.at.At(), Level: Warn, Tried: "compare agent-inter with policy.min_down",
		Found: fmt.Sprintf("%s is above half of min_down %s of cluster %s: a poll may miss that the writer was lost, and its sessions stay", said, cl.Policy.MinDown, cl.Name),
		Do:    fmt.Sprintf("agent-inter %dms or less, or a longer policy.min_down", (cl.Policy.MinDown / 2).Milliseconds()),
	}, true
}

// agentSend is what the agent check of a server is about: cluster, pool, node; nil when
// the line does not say.
func agentSend(l haproxycfg.Line) []string {
	i := slices.Index(l.Words, "agent-send")
	if i < 0 || i+1 == len(l.Words) {
		return nil
	}
	return strings.Fields(l.Words[i+1])
}

// shortest is the cluster with the shortest min_down of those with a write pool that an
// agent check may be about; nil when it is about none.
func shortest(clusters config.Clusters, about []string) (found *config.Cluster) {
	named := len(about) > 1 && slices.ContainsFunc(clusters, func(c config.Cluster) bool { return c.Name == about[0] })
	for i, c := range clusters {
		writes := slices.ContainsFunc(c.Pools, func(p config.Pool) bool {
			return p.Mode == topology.ModeWrite && (!named || p.Name == about[1])
		})
		if writes && (!named || c.Name == about[0]) && (found == nil || c.Policy.MinDown < found.Policy.MinDown) {
			found = &clusters[i]
		}
	}
	return found
}

var haproxyTimes = regexp.MustCompile(`^(\d{1,9})(us|ms|s|m|h|d|)$`)

// haproxyTime reads a time of HAProxy's, which are milliseconds without a unit.
func haproxyTime(text string) (time.Duration, bool) {
	m := haproxyTimes.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	unit := map[string]time.Duration{
		"us": time.Microsecond, "": time.Millisecond, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}[m[2]]
	return time.Duration(n) * unit, err == nil && time.Duration(n) < 100*24*time.Hour/unit
}
