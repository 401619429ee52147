package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

// usesHAProxy reports whether the configuration has anything to do with HAProxy.
func (x *exam) usesHAProxy() bool {
	return len(x.Config.HAProxy.Sockets) > 0 || len(x.HAProxyFiles) > 0 || x.program() != "" || len(x.masters()) > 0
}

// program is the HAProxy that checks files, "" when none does.
func (x *exam) program() string {
	for _, t := range x.Config.Templates {
		if len(t.Check) > 0 && strings.Contains(filepath.Base(t.Check[0]), "haproxy") {
			return t.Check[0]
		}
	}
	return ""
}

func (x *exam) masters() []string {
	all := slices.Clone(x.Config.HAProxy.MasterSockets)
	for _, t := range x.Config.Templates {
		if t.MasterSocket != "" && !slices.Contains(all, t.MasterSocket) {
			all = append(all, t.MasterSocket)
		}
	}
	return all
}

func haproxyProgram(ctx context.Context, x *exam) []Result {
	if x.Output == nil || !x.usesHAProxy() {
		return nil
	}
	name := x.program()
	if name == "" {
		name = "haproxy"
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := Result{Subject: name, Level: OK, Tried: name + " -v"}
	out, err := x.Output(ctx, name, "-v")
	if err != nil {
		r.Level, r.Found, r.Do = Fail, err.Error(), "install HAProxy, or name its path in the template's check"
		if x.program() == "" {
			r.Level, r.Do = Warn, "nothing here runs the program; the sockets are asked for their versions"
		}
		return []Result{r}
	}
	line, _, _ := strings.Cut(out, "\n")
	return versioned(r, line)
}

// versioned judges a version: one row for it, and one for each fault that pgsteer
// cannot avoid.
func versioned(r Result, text string) []Result {
	v, ok := haproxycli.ParseVersion(text)
	if !ok {
		r.Level, r.Found, r.Do = Warn, fmt.Sprintf("the version cannot be read from %q", text), "compare it with the known faults in docs/doctor.md by hand"
		return []Result{r}
	}
	r.Found = "version " + v.String()
	if haproxycli.Newest.Before(haproxycli.V(v.Major, v.Minor, 0)) {
		r.Found += ", newer than " + haproxycli.Newest.String() + ", the newest that was tried"
	}
	all := []Result{r}
	avoided := 0
	for _, f := range haproxycli.Known(v) {
		if f.Avoided != "" {
			avoided++
			continue
		}
		bad := r
		bad.Level, bad.Found, bad.Do = Warn, "version "+v.String()+" may have this fault: "+f.What+" ("+f.Issue+")", f.Do
		if f.Unsafe {
			bad.Level = Fail
		}
		all = append(all, bad)
	}
	if avoided > 0 {
		all[0].Found += fmt.Sprintf("; %d known faults of it are avoided", avoided)
	}
	return all
}

func haproxySockets(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, s := range x.Config.HAProxy.Sockets {
		all = append(all, x.haproxySocket(ctx, s)...)
	}
	return all
}

func (x *exam) haproxySocket(ctx context.Context, path string) []Result {
	r := Result{Subject: path, Level: OK, Tried: "show info, show cli level"}
	s, err := haproxycli.Parse(path)
	if err != nil {
		r.Level, r.Found, r.Do = Fail, err.Error(), "name a path or an address on loopback"
		return []Result{r}
	}
	s.Timeout, s.Dial = patience, x.Dial
	info, err := s.Ask(ctx, "show info")
	if err != nil {
		r.Level, r.Found = Fail, err.Error()
		r.Do = "see that HAProxy runs with `stats socket " + path + " mode 660 level admin`, and that the agent's user is in the socket's group"
		return []Result{r}
	}
	p := haproxycli.ParseInfo(info)
	if p.PID == "" {
		r.Level, r.Found, r.Do = Fail, fmt.Sprintf("the answer to show info is %.60q", info), "this is another socket than HAProxy's stats socket; the master's has a path of its own (-S)"
		return []Result{r}
	}
	all := versioned(r, p.Version)
	if p.Stopping {
		old := r
		old.Level, old.Found, old.Do = Warn, "process "+p.PID+" answers, which a reload has replaced", "try again in a moment; if it stays so, the new worker could not bind the socket"
		all = append(all, old)
	}
	if level, err := s.Ask(ctx, "show cli level"); err != nil || strings.TrimSpace(level) != "admin" {
		low := r
		low.Level, low.Found, low.Do = Fail, fmt.Sprintf("the socket has level %.20q, which may not change servers", strings.TrimSpace(level)), "stats socket "+path+" mode 660 level admin"
		if err != nil {
			low.Found = err.Error()
		}
		all = append(all, low)
	}
	return all
}

// manyOld is a number of old workers that says more than that sessions last.
const manyOld = 5

func haproxyMasters(ctx context.Context, x *exam) []Result {
	var all []Result
	for _, path := range x.masters() {
		r := Result{Subject: path, Level: OK, Tried: "show proc"}
		var p haproxycli.Processes
		s, err := haproxycli.Parse(path)
		if err == nil {
			s.Timeout, s.Dial = patience, x.Dial
			p, err = s.Processes(ctx)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			r.Level, r.Found, r.Do = Fail, err.Error(), "let this user's group in: -S "+path+",mode,660,group,GROUP among HAProxy's arguments"
		case err != nil:
			r.Level, r.Found, r.Do = Fail, err.Error(), "start HAProxy with -W -S "+path+" (Debian: EXTRAOPTS in /etc/default/haproxy); it must be another path than the stats socket"
		case p.Failed > 0:
			r.Level, r.Found, r.Do = Warn, fmt.Sprintf("the last %d reloads failed; the worker of before goes on", p.Failed), "haproxy -c on its files, and its log"
		case len(p.Old) > manyOld:
			r.Level, r.Found = Warn, fmt.Sprintf("%d old workers live on for their sessions", len(p.Old))
			r.Do = "find out what reloads so often; hard-stop-after and mworker-max-reloads bound them"
		default:
			r.Found = fmt.Sprintf("it answers, with %d old workers", len(p.Old))
		}
		all = append(all, r)
	}
	return append(all, x.masterless()...)
}

// masterless are the groups of HAProxy that others reload, whose word is no proof.
func (x *exam) masterless() (all []Result) {
	for _, t := range x.Config.Templates {
		if by := cmp.Or(t.ReloadUnit, strings.Join(t.Reload, " ")); by != "" && t.MasterSocket == "" && t.IsHAProxy() {
			all = append(all, Result{
				Subject: "template " + t.Name, Level: Warn, Tried: "read its master_socket",
				Found: "there is none, so what a reload by " + by + " did is not asked of HAProxy's master: one that did nothing is not made good, and without one of haproxy.sockets in its files it counts as good",
				Do:    "start HAProxy with -W -S /run/haproxy-master.sock (Debian: EXTRAOPTS in /etc/default/haproxy), and name that path in the template's master_socket",
			})
		}
	}
	return all
}
