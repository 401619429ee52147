package simulate

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// unknownWord is what an answer says of a name that nobody knows.
const unknownWord = "unknown"

// nothing reports whether a map of expectations is written and empty.
func nothing(v config.Value) bool {
	return isNull(v) || v.Written() && v.Node().Kind == yaml.MappingNode && len(v.Node().Content) == 0
}

// knownServer refuses a request of agent-check that names nobody: its answer is
// "down #unknown" whatever happens, and none at the start. Who expects one of
// these says so.
func (f *file) knownServer(v config.Value, request, want string) {
	if want == "" || strings.HasPrefix(want, "down #"+unknownWord) || strings.HasPrefix(want, "up 100% #"+unknownWord) {
		return
	}
	words := strings.Fields(request)
	if len(words) != 3 {
		v.Fault("%s is not CLUSTER POOL NODE, such as %s primary a; only \"down #unknown*\" can be expected of it", quoted(request), f.Name)
		return
	}
	f.known(v, words[0], []string{f.Name})
	f.known(v, words[1], f.pools)
	if words[2] != agentcheck.Guard {
		f.known(v, words[2], f.nodes)
	}
	if strings.Trim(want, "*") == "" {
		v.Fault("every answer is like %s; write a part of the one that is expected", quoted(want))
	}
}

// knownPath refuses a path below /clusters that names nobody, unless the body
// that is expected says that it is unknown.
func (f *file) knownPath(v config.Value, target string, want answer) {
	u, err := url.ParseRequestURI(target)
	if err != nil || strings.Contains(want.body, unknownWord) {
		return
	}
	e := strings.FieldsFunc(u.Path, func(c rune) bool { return c == '/' })
	if len(e) < 3 || e[0] != "clusters" {
		return
	}
	f.known(v, e[1], []string{f.Name})
	switch {
	case e[2] == "nodes" && len(e) > 3:
		f.known(v, e[3], f.nodes)
	case e[2] == "pools" && len(e) > 4:
		f.known(v, e[3], f.pools)
		node := e[len(e)-1]
		if e[4] == "check" {
			node, _, _ = strings.Cut(want.host, ":")
		}
		f.known(v, node, f.nodes)
	}
}

// alarmCodes are the reasons that can be alarms of a cluster (package engine).
var alarmCodes = []string{
	string(topology.CodeAuthorityLost), string(topology.CodeAuthorityUnknown), string(topology.CodeForeignKey), string(topology.CodeTwoGoals), string(topology.CodeIsolated),
	string(topology.CodeTwoWriters), string(topology.CodeWritesStalled), string(topology.CodeWritesBlocked),
}

// metricLabels are the metrics that a scenario can look at and their labels, as
// docs/metrics.md has them: all but those of sinks and of the agent's own book of
// maintenance, which are not played.
var metricLabels = map[string]string{
	"pgsteer_build_info":                                   "version",
	"pgsteer_config_last_reload_success":                   "",
	"pgsteer_config_last_reload_success_timestamp_seconds": "",
	"pgsteer_node_verdict":                                 "cluster node pool verdict",
	"pgsteer_node_reason":                                  "cluster node pool reason",
	"pgsteer_node_weight_ratio":                            "cluster node pool",
	"pgsteer_pool_nodes":                                   "cluster pool",
	"pgsteer_pool_up_nodes":                                "cluster pool",
	"pgsteer_pool_fallback":                                "cluster pool",
	"pgsteer_pool_last_change_timestamp_seconds":           "cluster pool",
	"pgsteer_node_up":                                      "cluster node",
	"pgsteer_node_failure":                                 "class cluster node",
	"pgsteer_node_evidence_age_seconds":                    "cluster node",
	"pgsteer_node_lag_bytes":                               "cluster node",
	"pgsteer_node_lag_seconds":                             "cluster node",
	"pgsteer_node_lag_age_seconds":                         "cluster node",
	"pgsteer_node_slots_exhausted":                         "cluster node",
	"pgsteer_port_up":                                      "cluster node port",
	"pgsteer_probe_privileges_missing":                     "cluster node",
	"pgsteer_probe_login_failing":                          "cluster node",
	"pgsteer_generation":                                   "cluster",
	"pgsteer_decision_info":                                "cluster hash",
	"pgsteer_decision_valid":                               "cluster",
	"pgsteer_cluster_complete":                             "cluster",
	"pgsteer_cluster_alarm":                                "cluster reason",
	"pgsteer_writes_stalled":                               "cluster",
	"pgsteer_writes_blocked":                               "cluster",
	"pgsteer_authority_current":                            "cluster",
	"pgsteer_authority_paused":                             "cluster",
	"pgsteer_primary_claims":                               "cluster",
	"pgsteer_highest_timeline":                             "cluster",
	"pgsteer_source_up":                                    "cluster source",
	"pgsteer_source_age_seconds":                           "cluster source",
}

// knownSeries refuses a series that pgsteer never has.
func (f *file) knownSeries(v config.Value, series string) {
	name, rest, _ := strings.Cut(normalSeries(series), "{")
	want, known := metricLabels[name]
	if !known {
		v.Fault("no such metric: %s", config.UnknownWord(name, sortedKeys(metricLabels)))
		return
	}
	var labels []string
	for l := range strings.SplitSeq(strings.TrimSuffix(rest, "}"), ",") {
		label, text, _ := strings.Cut(l, "=")
		value, err := strconv.Unquote(text)
		if err != nil && l != "" {
			v.Fault("`%s` is no label such as node=\"a\"", l)
			return
		}
		if l != "" {
			labels = append(labels, label)
			f.knownLabel(v, label, value)
		}
	}
	if got := strings.Join(labels, " "); got != want {
		v.Fault("%s has other labels: write all of %s", name, strings.Join(strings.Fields(want), ", "))
	}
}

func (f *file) knownLabel(v config.Value, label, value string) {
	switch label {
	case "cluster":
		f.known(v, value, []string{f.Name})
	case "pool":
		f.known(v, value, f.pools)
	case "node":
		f.known(v, value, f.nodes)
	case "reason":
		knownCode(v, value)
	}
}

// knownAlarm refuses what is no alarm ever.
func knownAlarm(v config.Value, code string) {
	if !slices.Contains(alarmCodes, code) {
		v.Fault("no such alarm: %s", config.UnknownWord(code, alarmCodes))
	}
}
