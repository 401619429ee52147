package haproxycli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/haproxycli/haproxytest"
)

// What every version answers is read as the same, but for what only some of them
// tell: how many reloads failed.
func TestAnswersOfEveryVersion(t *testing.T) {
	type processes = haproxycli.Processes
	const first, second = 101, 102
	for _, version := range haproxytest.Versions(t) {
		v, _ := haproxycli.ParseVersion(version)
		info, _ := haproxytest.Answer(t, version, "show info")
		p := haproxycli.ParseInfo(info)
		if full, ok := haproxycli.ParseVersion(p.Version); !ok || full.Major != v.Major || full.Minor != v.Minor {
			t.Errorf("%s says that it is %q", version, p.Version)
		}
		if p.PID != "101" || p.Uptime != 7 || p.Stopping {
			t.Errorf("%s: %+v", version, p)
		}
		alone := processes{Workers: map[int]bool{first: true}, Old: map[int]bool{}, Version: p.Version}
		failed := alone
		if !v.Before(haproxycli.V(2, 6, 0)) {
			failed.Failed = 1
		}
		for answer, want := range map[string]processes{
			"show proc":           alone,
			"show proc, reloaded": {Workers: map[int]bool{second: true}, Old: map[int]bool{first: true}, Version: p.Version},
			"show proc, failed":   failed,
		} {
			text, ok := haproxytest.Answer(t, version, answer)
			if diff := cmp.Diff(want, haproxycli.ParseProcesses(text)); diff != "" || !ok {
				t.Errorf("%s, %s: %s", version, answer, diff)
			}
		}
	}
}

// Of the versions with recorded answers, these have faults that pgsteer cannot
// avoid, and these may misroute.
func TestFaultsOfRecordedVersions(t *testing.T) {
	for version, want := range map[string]string{
		"2.2": "haproxy#1176 unsafe", "2.4": "haproxy#1302", "2.6": "", "2.8": "commit d76fa3753", "3.0": "", "3.2": "haproxy#3229 avoided",
		"3.4": "commit 7aec1e6d9 avoided",
	} {
		info, _ := haproxytest.Answer(t, version, "show info")
		v, _ := haproxycli.ParseVersion(haproxycli.ParseInfo(info).Version)
		var got []string
		for _, f := range haproxycli.Known(v) {
			switch {
			case f.Unsafe:
				got = append(got, f.Issue+" unsafe")
			case f.Avoided == "":
				got = append(got, f.Issue)
			case !f.From.Before(haproxycli.V(3, 1, 0)):
				got = append(got, f.Issue+" avoided")
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %q, want %q", version, s, want)
		}
	}
}

// The versions whose -c takes an empty file are those of which it is said.
func TestFaultOfTheCheckIsRecorded(t *testing.T) {
	for _, version := range haproxytest.Versions(t) {
		v, _ := haproxycli.ParseVersion(version)
		if v.Before(haproxycli.V(2, 6, 0)) {
			continue // not measured
		}
		_, code := haproxytest.Check(t, version, "empty, with -S")
		known := slices.ContainsFunc(haproxycli.Known(v), func(f haproxycli.Fault) bool { return strings.Contains(f.What, "-S accepts an empty file") })
		if known != (code == 0) {
			t.Errorf("%s ends with %d on an empty file, and the fault is known of it: %t", version, code, known)
		}
	}
}
