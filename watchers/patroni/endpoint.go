package patroni

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// How long an endpoint is left alone after a failure: twice as long each time.
const (
	pauseFirst = 500 * time.Millisecond
	pauseMost  = 5 * time.Second
	// After a question that hung. Patroni goes on working at it, up to its
	// retry_timeout (10 s by default), on one of as few as five threads.
	hungFirst = 2 * time.Second
	hungMost  = 10 * time.Second
)

// endpoint is a place where a Patroni answers.
type endpoint struct {
	base       string // scheme://host:port
	configured bool
	learned    bool   // it is the api_url of member
	member     string // who answers there; empty: not known yet
	shared     bool   // several members answered there
	word, list standing
}

func (e *endpoint) String() string {
	if e.member == "" {
		return e.base
	}
	return e.member + " at " + e.base
}

// standing is how a kind of question fares at an endpoint.
type standing struct {
	trouble *trouble      // of the newest one; nil: it was answered
	until   topology.Mono // it is not put again before
	step    time.Duration
}

func (s *standing) over(now topology.Mono) bool { return now >= s.until }

func (s *standing) hung() bool { return s.trouble != nil && s.trouble.hung }

// note takes the outcome of a question, and lengthens the pause after a failure.
// It draws the second half of it, so that many agents which lost the same member
// do not come back in step.
func (s *standing) note(now topology.Mono, t *trouble, jitter func(time.Duration) time.Duration) {
	if t == nil {
		*s = standing{}
		return
	}
	first, most := pauseFirst, pauseMost
	if t.hung {
		first, most = hungFirst, hungMost
	}
	s.trouble, s.step = t, min(max(2*s.step, first), most)
	s.until = now.Add(s.step/2 + jitter(s.step/2))
}

// parseBase reads an address of the REST interface. What follows the port, such
// as the /patroni of a member's api_url, is left out.
func parseBase(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is no URL", watchers.Clip(s))
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q begins neither with http:// nor with https://", watchers.Clip(s))
	case u.User != nil:
		return "", errors.New("the URL holds a user or password, which Patroni wants for changes alone")
	case u.Hostname() == "":
		return "", fmt.Errorf("%q names no host", watchers.Clip(s))
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port), nil
}

// directory is where members can be asked. Configured endpoints come first and
// stay; the members' own addresses come and go with the lists.
type directory struct {
	all     []*endpoint
	members []string // that the newest picture has, by name
}

func (d *directory) at(base string) *endpoint {
	i := slices.IndexFunc(d.all, func(e *endpoint) bool { return e.base == base })
	if i < 0 {
		return nil
	}
	return d.all[i]
}

// own is the endpoint of a member's api_url.
func (d *directory) own(member string) *endpoint {
	i := slices.IndexFunc(d.all, func(e *endpoint) bool { return e.learned && e.member == member })
	if i < 0 {
		return nil
	}
	return d.all[i]
}

// learn adds the members' own addresses. One that cannot be used, or that several
// members give, is a fault of the text that is returned.
func (d *directory) learn(members []topology.Member) (faults []string) {
	owner := make(map[string]string, len(members))
	for _, m := range members {
		base, err := parseBase(m.APIURL)
		if err != nil {
			faults = append(faults, fmt.Sprintf("member %s: its api_url cannot be used: %v", m.Name, err))
			continue
		}
		e := d.at(base)
		if e == nil {
			e = &endpoint{base: base}
			d.all = append(d.all, e)
		}
		if first, taken := owner[base]; taken {
			faults = append(faults, fmt.Sprintf("members %s and %s have the same api_url %s", first, m.Name, base))
			e.shared = true
			continue
		}
		owner[base] = m.Name
		e.learned, e.member, e.shared = true, m.Name, false
	}
	return faults
}

// keep forgets the addresses that the members of a new picture do not have.
func (d *directory) keep(members []topology.Member) {
	d.members = d.members[:0]
	bases := make(map[string]bool, len(members))
	for _, m := range members {
		d.members = append(d.members, m.Name)
		if base, err := parseBase(m.APIURL); err == nil {
			bases[base] = true
		}
	}
	d.all = slices.DeleteFunc(d.all, func(e *endpoint) bool {
		if !e.learned || bases[e.base] {
			return false
		}
		e.learned, e.member = false, ""
		return !e.configured
	})
}

// identify notes who answered at an endpoint, by the name that Patroni gives
// since 3.2. A member's own address where another one answers is trouble: it was
// given to another host.
func (e *endpoint) identify(name string) *trouble {
	switch {
	case name == "" || name == e.member:
	case e.learned:
		return contentTrouble(fmt.Errorf("member %s answers there", name))
	case e.member != "":
		e.shared = true
	default:
		e.member = name
	}
	return nil
}

// votes reports whether what is said there is one known member's.
func (e *endpoint) votes() bool { return e.member != "" && !e.shared }

// due lists whom to ask for the word: every member at its own address, and those
// configured endpoints that may know more. Those are asked while no member is
// known, while nothing is proven, and in place of a member's own address that
// does not answer, as behind a translation of addresses.
func (d *directory) due(now topology.Mono, doubt bool) []*endpoint {
	var out []*endpoint
	for _, e := range d.all {
		wanted := e.learned || len(d.members) == 0 || doubt && !e.votes()
		if own := d.own(e.member); !wanted && e.votes() {
			wanted = own == nil || own.word.trouble != nil
		}
		if wanted && e.word.over(now) {
			out = append(out, e)
		}
	}
	return out
}

// next is how long it takes until an endpoint may be asked again.
func (d *directory) next(now topology.Mono) time.Duration {
	first := d.all[0].word.until
	for _, e := range d.all[1:] {
		first = min(first, e.word.until)
	}
	return max(first.Sub(now), pauseFirst/10)
}
