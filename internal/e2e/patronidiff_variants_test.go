package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// limits are values of lag= as Patroni's parser takes them, or does not.
var limits = []string{
	"0", "1", "10MB", "10 MB", " 10MB", "1TB", "010", "0x6e", "1.1e2", "0.1kB", "1.0005MB", "-1", "00", "99999999999999999999999", "",
	"1M", "1mb", "1KB", "1k", "1PB", "abc", "nan", "inf", "1MBx", "09",
}

// tagQueries are choices by tags, of which n2 has some.
var tagQueries = []string{
	"tag_zone=b", "tag_zone=B", "tag_zone=", "tag_weight=10", "tag_weight=10.0", "tag_ratio=1.4", "tag_fast=true", "tag_fast=True",
	"tag_slow=false", "tag_missing=x", "tag_noloadbalance=false", "tag_zone=b&tag_weight=10", "tag_zone=b&tag_weight=11", "TAG_zone=z",
	"tag_zone=b&tag_zone=c", "unknown=1", "LAG=abc", "lag=10MB&lag=abc", "mode=write&lag=0", "mode=other&lag=0", "lag",
}

// paths are misspelt, or longer or shorter than Patroni's own.
var paths = []string{
	"/replica/", "/replicas", "/primary/foo", "/xprimaryx", "/healthz", "/unhealthy", "/cluster_health", "/sync/", "/async/", "/quorum/",
	"/read-only-sync/", "/Primary", "/%70rimary", "//primary", "/replica-leader", "/nonsense", "/patroni/x", "/liveness/x", "/livenessx",
	"/patronix", "/metrics/x", "/primary;x", "/primary?", "/?", "/read-only-replica", "/standby_leader/x",
}

// raws are requests that are no plain ones.
var raws = map[string]string{
	"absolute form":             "GET http://node/primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
	"OPTIONS *":                 "OPTIONS * HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
	"HAProxy's plain httpchk":   "OPTIONS / HTTP/1.0\r\n\r\n",
	"HTTP/1.0 without Host":     "GET /replica HTTP/1.0\r\n\r\n",
	"HEAD of HTTP/1.0":          "HEAD /primary HTTP/1.0\r\n\r\n",
	"HTTP/1.1, close":           "GET /primary HTTP/1.1\r\nHost: node:8008\r\nConnection: close\r\nUser-Agent: check/1.0\r\nAccept: */*\r\n\r\n",
	"POST":                      "POST /primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	"PUT":                       "PUT /primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	"PATCH":                     "PATCH /primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	"DELETE":                    "DELETE /primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
	"another version of HTTP":   "GET /primary HTTP/2.0\r\nHost: node\r\n\r\n",
	"a line that is no request": "hello\r\n\r\n",
	"two at once":               "GET /primary HTTP/1.1\r\nHost: node\r\n\r\nGET /health HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
	"a fragment":                "GET /primary#top HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
}

// wordedRaw are the rows of the manual that say in words how these are answered.
var wordedRaw = map[string][]string{
	"another version of HTTP":   {"errors"},
	"a line that is no request": {"errors"},
}

// variants asks the leader and a replica in other ways than plain ones.
func (d *diffRig) variants() {
	d.step("request variants", func() {
		var all []question
		for _, at := range []question{{ref: "main/n1", row: "M1"}, {ref: "main/n2", row: "M5"}} {
			for _, p := range []string{"/replica", "/async", "/read-only", "/readiness", "/primary", "/health"} {
				for _, limit := range limits {
					all = append(all, at.get(p+"?lag="+url.QueryEscape(limit)))
				}
				for _, q := range tagQueries {
					all = append(all, at.get(p+"?"+q))
				}
				for _, s := range []string{"streaming", "in%20archive%20recovery", "in+archive+recovery", ""} {
					all = append(all, at.get(p+"?replication_state="+s))
				}
			}
		}
		d.compare("request variants", all)
	})
	for ref, row := range map[string]string{"main/n1": "M1", "main/n2": "M5"} {
		d.step("forms of requests to "+ref, func() {
			d.local(ref)
			var all []question
			for _, p := range paths {
				for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
					all = append(all, question{ref: ref, row: row, method: m, target: p, topic: m + " " + p, short: true})
				}
			}
			for name, raw := range raws {
				m, rest, _ := strings.Cut(raw, " ")
				target, _, _ := strings.Cut(rest, " ")
				all = append(all, question{ref: ref, row: row, method: m, target: target, raw: raw, topic: name, short: true, known: wordedRaw[name]})
			}
			d.compare("forms of requests", all)
		})
	}
	d.step("the local node again", func() { d.local(local) })
}

// get is the same question with a target.
func (q question) get(target string) question {
	q.method, q.target, q.topic = http.MethodGet, target, "GET "+target
	return q
}

// lagVariants asks with limits around the lag that n2 has, to the byte.
func (d *diffRig) lagVariants() {
	d.step("lag to the byte", func() {
		var lag int64
		var nudged time.Time
		d.until("the leader to have written down its last position", func() bool {
			if time.Since(nudged) > 3*time.Second { // its own records reach the disk with the next commit
				d.exec("main/n1", "COMMENT ON TABLE burst IS 'a commit'")
				nudged = time.Now()
			}
			lag = d.lag()
			return lag > 1<<20
		})
		at := question{ref: "main/n2", row: "M5-behind"}
		var all []question
		for _, limit := range []int64{lag - 1, lag, lag + 1} {
			for _, p := range []string{"/replica", "/async", "/read-only", "/readiness", "/sync"} {
				all = append(all, at.get(p+"?lag="+strconv.FormatInt(limit, 10)))
			}
		}
		d.t.Logf("n2 lags by %d bytes", lag)
		d.compare("lag to the byte", all)
	})
}

// lag is how far n2 is behind, as Patroni counts, or 0 while the leader's position
// in Consul is not yet its last one.
func (d *diffRig) lag() int64 {
	v, err := d.consul.Get(d.t.Context(), key("status"))
	var s struct{ Optime int64 }
	if err != nil || json.Unmarshal([]byte(v), &s) != nil {
		return 0
	}
	position := func(ref, function string) (at int64) {
		text := d.text(ref, "SELECT pg_wal_lsn_diff("+function+"(), '0/0')::bigint::text")
		at, _ = strconv.ParseInt(text, 10, 64) // 0 while it does not answer
		return at
	}
	now, at := position("main/n1", "pg_current_wal_lsn"), position("main/n2", "pg_last_wal_replay_lsn")
	if now == 0 || at == 0 || now != s.Optime {
		return 0
	}
	return now - at
}
