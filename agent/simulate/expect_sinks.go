package simulate

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
)

// Words that stand for the absence of an answer, of a series or a node, and of
// everything that would be said of a pool.
const (
	noAnswer = "none"
	absent   = "absent"
	withheld = "withheld"
)

func (f *file) agentChecks(v config.Value, what string) []check {
	var out []check
	for request, below := range v.Entries() {
		var want string
		if below.Into(&want) {
			f.knownServer(below, request, want)
		}
		line, _ := below.Place()
		out = append(out, check{
			line: line, what: what + "." + quoted(request), want: strconv.Quote(want),
			look: func(r *run) (string, bool) {
				got := r.sinks.agentCheck(request)
				return strconv.Quote(got), matches(want, got)
			},
		})
	}
	return out
}

// matches compares with a pattern in which * stands for any text.
func matches(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return s == pattern
	}
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = rest
	}
	return true
}

func quoted(key string) string {
	if strings.ContainsAny(key, ` .{"`) {
		return strconv.Quote(key)
	}
	return key
}

func (f *file) httpChecks(v config.Value, what string) []check {
	var out []check
	for target, below := range v.Entries() {
		if u, err := url.ParseRequestURI(target); err != nil || u.Host != "" || !strings.HasPrefix(target, "/") {
			below.Fault("%s is no path such as /clusters/%s/nodes/a/replica", quoted(target), f.Name)
		}
		want := httpWant(below)
		f.knownPath(below, target, want)
		line, _ := below.Place()
		out = append(out, check{
			line: line, what: what + "." + quoted(target), want: want.String(),
			look: func(r *run) (string, bool) { return want.compare(r, target) },
		})
	}
	return out
}

// answer is what a health check should be answered.
type answer struct {
	code int // 0: the connection is closed without an answer
	body string
	host string // the Host header of the request
}

func httpWant(v config.Value) answer {
	var long struct {
		Code string `yaml:"code"`
		Body string `yaml:"body"`
		Host string `yaml:"host"`
	}
	at := v
	if _, scalar := v.Text(); scalar {
		v.Into(&long.Code)
	} else {
		v.Into(&long)
		at = v.Key("code")
	}
	a := answer{body: long.Body, host: long.Host}
	if long.Code == noAnswer {
		return a
	}
	code, err := strconv.Atoi(long.Code)
	if err != nil || code < 100 || code > 599 {
		at.Fault("%s is neither a status code of HTTP nor none for no answer", quoted(long.Code))
	}
	a.code = code
	return a
}

func (a answer) String() string {
	if a.code == 0 {
		return "no answer"
	}
	if a.body == "" {
		return strconv.Itoa(a.code)
	}
	return fmt.Sprintf("%d with %q in its body", a.code, a.body)
}

func (a answer) compare(r *run, target string) (got string, good bool) {
	is, err := get(r.sinks.health, request{target, a.host})
	switch {
	case err != nil:
		return err.Error(), false
	case is.code == 0:
		return "no answer", a.code == 0
	}
	got = fmt.Sprintf("%d, %s", is.code, is.header.Get("X-Pgsteer-Reason"))
	if a.body != "" {
		got += ": " + strings.TrimSpace(is.body.String())
	}
	return got, is.code == a.code && strings.Contains(is.body.String(), a.body)
}

// healthWords are Envoy's words for the health of an endpoint that a file may name.
var healthWords = []string{"HEALTHY", "UNHEALTHY", "DRAINING", "DEGRADED", "TIMEOUT", "UNKNOWN"}

func (f *file) edsChecks(v config.Value, what string) []check {
	var out []check
	for name, below := range v.Entries() {
		f.scenario.usesEDS = true
		cluster, pool := path.Split(name)
		if f.known(below, pool, f.pools); f.sound && strings.TrimSuffix(cluster, "/") != f.Name {
			below.Fault("%s is not CLUSTER/POOL, such as %s/%s", quoted(name), f.Name, pool)
		}
		want := f.edsWant(below)
		out = append(out, equal(below, what+"."+quoted(name), want, func(r *run) string {
			if got, known := r.sinks.endpoints(name); known {
				return endpointsText(got)
			}
			return withheld
		}))
	}
	return out
}

func (f *file) edsWant(v config.Value) string {
	if word, scalar := v.Text(); scalar {
		if word != withheld {
			v.Fault("`%s` is neither withheld nor a map of nodes and their health", word)
		}
		return word
	}
	var want map[string]string
	v.Into(&want)
	for node, below := range v.Entries() {
		f.known(below, node, f.nodes)
		if health, scalar := below.Text(); scalar && !slices.Contains(healthWords, health) {
			below.Fault("%s", config.UnknownWord(health, healthWords))
		}
	}
	return endpointsText(want)
}

func endpointsText(all map[string]string) string {
	var parts []string
	for _, node := range sortedKeys(all) {
		parts = append(parts, node+": "+all[node])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// configChecks look at the built-in HAProxy template's text.
func (f *file) configChecks(v config.Value, what string) []check {
	var want struct {
		Contains  []text `yaml:"contains"`
		Lacks     []text `yaml:"lacks"`
		Unchanged *bool  `yaml:"unchanged"`
	}
	if v.Into(&want) {
		switch {
		case len(want.Contains)+len(want.Lacks) == 0 && want.Unchanged == nil:
			v.Fault("nothing is expected of the file: say contains, lacks or unchanged")
		case slices.Contains(slices.Concat(want.Contains, want.Lacks), ""):
			v.Fault("every line has an empty part; write a part of the one that is expected, or of the one that is not")
		}
	}
	line, _ := v.Place()
	var out []check
	for _, part := range want.Contains {
		out = append(out, fileCheck(check{line: line, what: what + ".contains", want: fmt.Sprintf("a line with %q", part)}, string(part), true))
	}
	for _, part := range want.Lacks {
		out = append(out, fileCheck(check{line: line, what: what + ".lacks", want: fmt.Sprintf("no line with %q", part)}, string(part), false))
	}
	return append(out, unchangedCheck(line, what+".unchanged", want.Unchanged))
}

// fileCheck looks for a line that has a text in it.
func fileCheck(c check, part string, has bool) check {
	c.look = func(r *run) (string, bool) {
		file, err := r.sinks.haproxy()
		if err != nil {
			return err.Error(), false
		}
		for l := range strings.Lines(file) {
			if strings.Contains(l, part) {
				return strings.TrimSpace(l), has
			}
		}
		return "no such line", !has
	}
	return c
}

// unchangedCheck compares the file with what the expectation before saw, and
// remembers it for the next one.
func unchangedCheck(line int, what string, want *bool) check {
	c := check{line: line, what: what, silent: want == nil}
	if want != nil {
		c.want = map[bool]string{true: "the file as it was seen last", false: "another file than was seen last"}[*want]
	}
	c.look = func(r *run) (string, bool) {
		file, err := r.sinks.haproxy()
		if err != nil {
			return err.Error(), false
		}
		before := r.sinks.config
		r.sinks.config = &file
		switch {
		case want == nil:
			return "", true
		case before == nil:
			return "no expectation before this one has looked at the file", false
		}
		return diff(*before, file), (*before == file) == *want
	}
	return c
}

// diff shows the lines that differ.
func diff(before, after string) string {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	for _, l := range old {
		if !slices.Contains(now, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range now {
		if !slices.Contains(old, l) {
			out = append(out, "+ "+l)
		}
	}
	if len(out) == 0 {
		return "the same file"
	}
	return strings.Join(out, "\n")
}

func (f *file) metricChecks(v config.Value, what string) []check {
	var out []check
	for series, below := range v.Entries() {
		want, scalar := below.Text()
		if _, err := strconv.ParseFloat(want, 64); !scalar || err != nil && want != absent {
			below.Fault("%s is neither a number nor absent", quoted(want))
		}
		f.knownSeries(below, series)
		out = append(out, metricCheck(below, what+"."+quoted(series), want))
	}
	return out
}

func metricCheck(v config.Value, what, want string) check {
	if value, err := strconv.ParseFloat(want, 64); err == nil {
		want = strconv.FormatFloat(value, 'g', -1, 64)
	}
	_, series, _ := strings.Cut(what, ".")
	if s, err := strconv.Unquote(series); err == nil {
		series = s
	}
	return equal(v, what, want, func(r *run) string {
		value, there, err := r.sinks.metric(series)
		switch {
		case err != nil:
			return err.Error()
		case !there:
			return absent
		}
		return strconv.FormatFloat(value, 'g', -1, 64)
	})
}
