package e2e

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// groups are the health checks that Patroni answers by the same rule.
var groups = map[string][]string{
	"P":   {"/", "/primary", "/master", "/read-write"},
	"L":   {"/leader"},
	"SL":  {"/standby-leader", "/standby_leader"},
	"R":   {"/replica"},
	"RO":  {"/read-only"},
	"ROS": {"/read-only-sync", "/read-only-synchronous"},
	"S":   {"/sync", "/synchronous"},
	"A":   {"/async", "/asynchronous"},
	"Q":   {"/quorum"},
	"ROQ": {"/read-only-quorum"},
	"H":   {"/health"},
	"RD":  {"/readiness"},
}

// others are endpoints that say more than yes or no.
var others = []string{"/liveness", "/patroni", "/cluster", "/history", "/config", "/metrics", "/failsafe"}

// rows of Patroni's state matrix: the groups that are 200. A question mark means
// either; and so does a ~ after a row's name for its RD, which asks for a receiver.
var rows = map[string]string{
	"M1":           "P L RO ROS ROQ H RD",     // primary that holds the lock
	"M2":           "H RD?",                   // primary without the lock
	"M3":           "P L RO ROS ROQ RD",       // lock held, PostgreSQL is not running
	"M4":           "P L R RO ROS A ROQ H RD", // lock held, in recovery
	"M5":           "R RO A H RD",             // asynchronous replica
	"M6":           "R RO A H",                // the same without WAL receiver
	"M7":           "R RO A H",                // the same with a restore_command
	"M8":           "H RD",                    // replica, noloadbalance
	"M9":           "R RO ROS S H RD",         // synchronous standby
	"M10":          "H RD",                    // the same, noloadbalance
	"M11":          "R RO Q ROQ H RD",         // quorum standby
	"M12":          "",                        // replica whose PostgreSQL does not run
	"M14":          "L SL RO ROS ROQ H RD",    // leader of a standby cluster
	"M14-stopped":  "L SL RO ROS ROQ RD",      // the same, PostgreSQL is not running
	"M15":          "R RO A H RD",             // replica in a standby cluster
	"M16-failsafe": "P L RO H RD",             // primary with an unexpired lock, Consul away
	"M18":          "P L RO H",                // paused primary with an expired lock, Consul away
	"M19":          "R RO H RD?",              // replica, Consul away
	"M20":          "R RO H RD?",              // the same, the leader's position not known
	"M21":          "R RO H RD?",              // the same, failsafe mode
	"M21-sync":     "R RO H RD?",              // the same, synchronous standby
	"M22":          "L SL RO H RD?",           // paused standby leader, Consul away
	"M22-expired":  "H RD?",                   // standby leader, not paused, Consul away
	"M23":          "",                        // Patroni does not run: no answer at all
}

// expected is what a row says of a group: "200", "503", "none", or "" for either.
func (d *diffRig) expected(row, group string) string {
	row, loose := strings.CutSuffix(row, "~")
	yes := strings.Fields(rows[row])
	switch {
	case row == "M23":
		return "none"
	case !d.v4 && group == "Q":
		return "503"
	case !d.v4 && group == "ROQ":
		return d.expected(row, "RO")
	case group == "RD" && (loose || !d.v4): // another rule: locked, or running with a view of Consul
		return ""
	case slices.Contains(yes, group):
		return "200"
	case slices.Contains(yes, group+"?"):
		return ""
	}
	return "503"
}

// shown waits until every node's Patroni answers as its row says, so that the
// state that is compared is the one that was meant.
func (d *diffRig) shown(want map[string]string) {
	d.t.Helper()
	var wrong []string
	defer func() {
		if len(wrong) > 0 {
			d.t.Logf("Patroni does not show the state: %s", strings.Join(wrong, "; "))
		}
	}()
	d.until("Patroni to show the state", func() bool {
		wrong = wrong[:0]
		for _, ref := range slices.Sorted(maps.Keys(want)) {
			for _, g := range slices.Sorted(maps.Keys(groups)) {
				expected := d.expected(want[ref], g)
				if expected == "" {
					continue
				}
				got := tell(d.node(ref).RESTAddr(), plain(http.MethodGet, groups[g][0]), 4*time.Second)
				if got.String() != expected {
					wrong = append(wrong, fmt.Sprintf("%s is no %s, %s is %s", ref, want[ref], groups[g][0], got))
					return false
				}
			}
		}
		return true
	})
}

// question is one thing that Patroni and pgsteer are asked alike.
type question struct {
	ref    string // "main/n1"
	row    string // of the matrix
	method string
	target string
	raw    string   // of the request as it is sent; empty: a plain one
	topic  string   // of the comparison, with raw the name of the variant
	short  bool     // pgsteer is asked on the short path
	known  []string // rows of the manual whose words are about this question
	body   bool     // what is compared is the body

	tls    *tls.Config // nil: without TLS
	manner string      // of manners; empty: as everybody
}

func (q question) request(target string) string {
	if q.raw != "" {
		return q.raw
	}
	return plain(q.method, target)
}

// longPath is where pgsteer answers for a node that is not its own.
func (q question) longPath() string {
	if q.short {
		return q.target
	}
	cluster, node, _ := strings.Cut(q.ref, "/")
	return "/clusters/" + cluster + "/nodes/" + node + q.target
}

// state makes a state, waits until Patroni shows it and compares all answers.
// A node without a row is not looked at.
func (d *diffRig) state(name string, want map[string]string, enter func()) {
	d.whole.Helper()
	d.step(name, func() {
		d.want = want
		enter()
		d.shown(want)
		var all []question
		for _, ref := range slices.Sorted(maps.Keys(want)) {
			all = append(all, d.questions(ref, want[ref])...)
		}
		d.compare(name, all)
		d.shown(want)
	})
}

// questions are all endpoints with all methods, and what bodies say.
func (d *diffRig) questions(ref, row string) (all []question) {
	at := question{ref: ref, row: strings.TrimSuffix(row, "~"), known: worded[row]}
	paths := slices.Clone(others)
	for _, g := range groups {
		paths = append(paths, g...)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if p == "/" && ref != local {
			continue // it has no long form
		}
		if d.gone && stored[p] != nil {
			if ref == "main/n2" {
				q := at.get(p)
				q.known = stored[p]
				all = append(all, q)
			}
			continue
		}
		for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			q := at
			q.method, q.target, q.topic, q.short = m, p, m+" "+p, p == "/"
			all = append(all, q)
		}
	}
	for p := range bodies {
		if d.gone && stored[p] != nil {
			continue
		}
		q := at
		q.method, q.target, q.topic, q.body = http.MethodGet, p, p, true
		all = append(all, q)
	}
	return all
}

// local is the node that the agents answer for on short paths.
const local = "main/n1"

// worded are the rows of the manual that say in words what holds in a state.
var worded = map[string][]string{
	"M22-expired": {"held-standby"},
	"M23":         {"patroni-away"},
	"hung":        {"hung"},
	"silent":      {"silent-clients"},
}

// stored are the endpoints for which Patroni asks Consul, with the rows of the
// manual that say what becomes of them without it. Each costs seconds then.
var stored = map[string][]string{"/cluster": {"cluster-away"}, "/history": {"documents"}, "/config": {"documents"}, "/failsafe": {"documents"}}

// settleWithin is how long pgsteer may take to come to what Patroni shows. Member keys
// are read every ten seconds.
const settleWithin = 30 * time.Second

// compare asks everything, then again what differs without being listed, until
// nothing does or the time is up; what differs then is an error.
func (d *diffRig) compare(name string, all []question) {
	d.t.Helper()
	var done []result
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(settleWithin); len(all) > 0; <-tick.C {
		d.touch()
		answers := d.round(name, all)
		var again []question
		for i, q := range all {
			if slices.ContainsFunc(answers[i], result.unlisted) && time.Now().Before(end) {
				again = append(again, q)
				continue
			}
			done = append(done, answers[i]...)
		}
		all = again
	}
	d.judge(done)
}

// round asks all questions once, a few at a time: Patroni 4 has five threads.
func (d *diffRig) round(name string, all []question) [][]result {
	answers := make([][]result, len(all))
	var g errgroup.Group
	g.SetLimit(5)
	for i, q := range all {
		g.Go(func() error {
			answers[i] = d.once(name, q)
			return nil
		})
	}
	_ = g.Wait() // there are no errors
	return answers
}

// once asks Patroni and both agents the same.
func (d *diffRig) once(name string, q question) (found []result) {
	theirs := q.put(d.node(q.ref).RESTAddr(), q.target)
	for mode, r := range d.agents {
		if mode == strict && !d.v4 {
			continue // strict answers are held against those of Patroni 4
		}
		addr := r.health
		if q.tls != nil {
			addr = d.secure[mode]
		}
		ours := q.put(addr, q.longPath())
		x := result{state: name, question: q, mode: mode, reason: ours.reason()}
		if q.body {
			found = append(found, d.fields(x, theirs, ours)...)
			continue
		}
		x.patroni, x.ours = theirs.String(), ours.String()
		found = append(found, d.listed(x))
	}
	return found
}
