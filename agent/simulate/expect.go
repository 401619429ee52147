package simulate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// check is one thing that is expected.
type check struct {
	line   int
	what   string // the keys that lead to it
	want   string
	silent bool // it only looks, and is no expectation of its own
	// look returns what is, and whether that is as expected.
	look func(*run) (got string, good bool)
}

// nobody is the word for no node.
const nobody = "none"

// equal expects a text.
func equal(v config.Value, what, want string, got func(*run) string) check {
	line, _ := v.Place()
	return check{line: line, what: what, want: want, look: func(r *run) (string, bool) {
		is := got(r)
		return is, is == want
	}}
}

// expectKeys are the keys of expect.
var expectKeys = map[string]func(f *file, v config.Value, what string) []check{
	"writer": func(f *file, v config.Value, what string) []check {
		return f.nodeCheck(v, what, func(r *run) string { return r.snap.Writer })
	},
	"held": func(f *file, v config.Value, what string) []check {
		return f.nodeCheck(v, what, func(r *run) string { return r.snap.Held })
	},
	"authority":   (*file).authorityCheck,
	"alarms":      (*file).alarmChecks,
	"up":          (*file).upChecks,
	"verdicts":    (*file).verdictChecks,
	"weights":     (*file).weightChecks,
	"fallback":    (*file).fallbackChecks,
	"reasons":     (*file).reasonChecks,
	"text":        (*file).textChecks,
	"agent_check": (*file).agentChecks,
	"http":        (*file).httpChecks,
	"eds":         (*file).edsChecks,
	"config":      (*file).configChecks,
	"metrics":     (*file).metricChecks,
	"burst": func(f *file, v config.Value, what string) []check {
		return f.listCheck(v, what, func(r *run) []string { return r.demand.Burst })
	},
	"back_off": func(f *file, v config.Value, what string) []check {
		return f.listCheck(v, what, func(r *run) []string { return r.demand.BackOff })
	},
	"confirm": func(_ *file, v config.Value, what string) []check {
		return boolCheck(v, what, func(r *run) bool { return r.demand.Confirm })
	},
}

// expectations reads a map of expectations.
func (f *file) expectations(v config.Value) []check {
	var out []check
	if nothing(v) {
		v.Fault("nothing is expected here: write, say, writer: a")
	}
	for key, below := range v.Entries() {
		read, known := expectKeys[key]
		if !known {
			below.Fault("unknown key: %s", config.UnknownWord(key, sortedKeys(expectKeys)))
			continue
		}
		checks := read(f, below, key)
		if len(checks) == 0 && nothing(below) {
			below.Fault("nothing is expected of %s", key)
		}
		out = append(out, checks...)
	}
	return out
}

func (f *file) nodeCheck(v config.Value, what string, got func(*run) string) []check {
	var want string
	v.Into(&want)
	if want != nobody {
		f.known(v, want, f.nodes)
	}
	return []check{equal(v, what, want, func(r *run) string {
		if n := got(r); n != "" {
			return n
		}
		return nobody
	})}
}

func boolCheck(v config.Value, what string, got func(*run) bool) []check {
	var want bool
	v.Into(&want)
	return []check{equal(v, what, strconv.FormatBool(want), func(r *run) string { return strconv.FormatBool(got(r)) })}
}

// listCheck expects exactly these nodes, in any order.
func (f *file) listCheck(v config.Value, what string, got func(*run) []string) []check {
	var want []string
	v.Into(&want)
	for i, below := range v.Elements() {
		if i < len(want) {
			f.known(below, want[i], f.nodes)
		}
	}
	return []check{equal(v, what, listText(want), func(r *run) string { return listText(got(r)) })}
}

func listText(all []string) string { return "[" + strings.Join(sorted(all), ", ") + "]" }

var authorityStates = []string{
	topology.AuthorityStateNone, topology.AuthorityStateUnknown, topology.AuthorityStateCurrent, topology.AuthorityStateLost,
}

func (f *file) authorityCheck(v config.Value, what string) []check {
	var want string
	if v.Into(&want) && !slices.Contains(authorityStates, want) {
		v.Fault("%s", config.UnknownWord(want, authorityStates))
	}
	return []check{equal(v, what, want, func(r *run) string { return r.snap.Authority.State })}
}

func (f *file) alarmChecks(v config.Value, what string) []check {
	var want []string
	v.Into(&want)
	for i, below := range v.Elements() {
		if i < len(want) {
			knownAlarm(below, want[i])
		}
	}
	return []check{equal(v, what, listText(want), func(r *run) string { return listText(alarms(r.snap)) })}
}

func knownCode(v config.Value, code string) {
	if topology.Code(code).Info().Code != "" {
		return
	}
	var all []string
	for _, c := range topology.Codes {
		all = append(all, string(c.Code))
	}
	v.Fault("no such reason: %s", config.UnknownWord(code, all))
}

// perPool reads a map by pool.
func (f *file) perPool(v config.Value, what string, read func(pool string, below config.Value, what string) []check) []check {
	var out []check
	for pool, below := range v.Entries() {
		f.known(below, pool, f.pools)
		out = append(out, read(pool, below, what+"."+pool)...)
	}
	return out
}

// perNode reads a map by pool and node.
func (f *file) perNode(v config.Value, what string, read func(where place, below config.Value, what string) []check) []check {
	return f.perPool(v, what, func(pool string, below config.Value, what string) []check {
		var out []check
		if nothing(below) {
			below.Fault("nothing is expected of pool %s", pool)
		}
		for node, value := range below.Entries() {
			f.known(value, node, f.nodes)
			out = append(out, read(place{pool, node}, value, what+"."+node)...)
		}
		return out
	})
}

// place is a node in a pool.
type place struct{ pool, node string }

// verdict is what is decided there, and false when the node is not listed.
func (p place) verdict(r *run) (topology.NodeVerdict, bool) {
	pool, ok := r.snap.Pool(p.pool)
	if !ok {
		return topology.NodeVerdict{}, false
	}
	return pool.Verdict(p.node)
}

func (f *file) upChecks(v config.Value, what string) []check {
	return f.perPool(v, what, func(pool string, below config.Value, what string) []check {
		return f.listCheck(below, what, func(r *run) []string {
			p, _ := r.snap.Pool(pool)
			names := []string{}
			for _, n := range p.Up() {
				names = append(names, n.Node)
			}
			return names
		})
	})
}

func (f *file) verdictChecks(v config.Value, what string) []check {
	return f.perNode(v, what, func(where place, below config.Value, what string) []check {
		var want string
		if below.Into(&want) {
			verdict, code, coded := strings.Cut(want, "/")
			if words := []string{"up", "drain", "down", "undecided", absent}; !slices.Contains(words, verdict) {
				below.Fault("%s", config.UnknownWord(verdict, words))
			} else if coded {
				knownCode(below, code)
			}
		}
		return []check{equal(below, what, want, func(r *run) string {
			n, listed := where.verdict(r)
			switch {
			case !listed:
				return absent
			case strings.Contains(want, "/"):
				return n.Verdict.String() + "/" + string(n.Reason().Code)
			}
			return n.Verdict.String()
		})}
	})
}

func (f *file) weightChecks(v config.Value, what string) []check {
	return f.perNode(v, what, func(where place, below config.Value, what string) []check {
		var want int
		if below.Into(&want) && (want < 1 || want > 100) {
			below.Fault("a node that is up has a weight from 1 to 100")
		}
		return []check{equal(below, what, strconv.Itoa(want), func(r *run) string {
			n, listed := where.verdict(r)
			switch {
			case !listed:
				return absent
			case n.Verdict != topology.Up:
				return n.Verdict.String()
			}
			return strconv.Itoa(n.Weight)
		})}
	})
}

func (f *file) fallbackChecks(v config.Value, what string) []check {
	return f.perPool(v, what, func(pool string, below config.Value, what string) []check {
		return boolCheck(below, what, func(r *run) bool {
			p, _ := r.snap.Pool(pool)
			return p.Fallback
		})
	})
}

func (f *file) reasonChecks(v config.Value, what string) []check {
	return f.perNode(v, what, func(where place, below config.Value, what string) []check {
		var want []string
		below.Into(&want)
		for i, code := range below.Elements() {
			if i < len(want) {
				knownCode(code, want[i])
			}
		}
		return []check{equal(below, what, listText(want), func(r *run) string {
			n, listed := where.verdict(r)
			if !listed {
				return absent
			}
			codes := []string{}
			for _, reason := range n.Reasons {
				codes = append(codes, string(reason.Code))
			}
			return listText(codes)
		})}
	})
}

func (f *file) textChecks(v config.Value, what string) []check {
	return f.perNode(v, what, func(where place, below config.Value, what string) []check {
		var want string
		if below.Into(&want) && want == "" {
			below.Fault("every text has an empty part; write a part of the one that is expected")
		}
		line, _ := below.Place()
		return []check{{line: line, what: what, want: fmt.Sprintf("a text with %q", want), look: func(r *run) (string, bool) {
			n, listed := where.verdict(r)
			if !listed {
				return absent, false
			}
			return strconv.Quote(n.Reason().Text), strings.Contains(n.Reason().Text, want)
		}}}
	})
}
