package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
)

func stateFolder(_ context.Context, x *exam) []Result {
	dir := x.Config.StateFolder(x.Getenv)
	r := Result{Subject: dir, Level: OK, Tried: "make and remove a file there", Found: "can be written"}
	f, err := os.CreateTemp(dir, ".doctor-*")
	if errors.Is(err, fs.ErrNotExist) {
		r.Tried = "look for the folder"
		r.Level, r.Found, r.Do = Warn, "is not there yet", "the agent makes it at its start, as its own user; systemd does with StateDirectory=pgsteer"
		return []Result{r}
	}
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		r.Level, r.Found, r.Do = Fail, err.Error(), "run doctor as the agent's user, and give that user the folder"
	}
	return []Result{r}
}

// ofKind are the configuration's files whose key has one of these words, each once.
func ofKind(c *config.Config, words ...string) []string {
	var files []string
	for _, f := range c.Files() {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(f.Key, w) }) {
			files = append(files, f.Path)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

func secrets(_ context.Context, x *exam) []Result {
	var all []Result
	for _, file := range ofKind(x.Config, "password", "token", "key") {
		all = append(all, secret(file))
	}
	return all
}

func secret(file string) Result {
	r := Result{Subject: file, Level: OK, Tried: "read it, and its mode"}
	info, err := os.Stat(file)
	if err == nil {
		_, err = os.ReadFile(file)
	}
	if err != nil {
		r.Level, r.Found, r.Do = Fail, err.Error(), "give the agent's user the right to read it"
		return r
	}
	mode := info.Mode().Perm()
	r.Found = fmt.Sprintf("mode %04o", mode)
	switch {
	case mode&0o004 != 0 || mode&0o002 != 0:
		r.Level, r.Found, r.Do = Fail, r.Found+": everybody on this host may use it", "chmod 0640 or 0600"
	case mode&0o020 != 0:
		r.Level, r.Found, r.Do = Warn, r.Found+": its group may replace it", "chmod 0640 or 0600"
	}
	return r
}

// soon is how long a certificate should last.
const soon = 14 * 24 * time.Hour

func certificates(_ context.Context, x *exam) []Result {
	var all []Result
	for _, file := range ofKind(x.Config, "cert", "ca_file") {
		all = append(all, x.certificate(file))
	}
	return all
}

// certificate looks at all certificates of a file; the first to end counts.
func (x *exam) certificate(file string) Result {
	r := Result{Subject: file, Level: Fail, Tried: "read every certificate in it", Do: "put a valid one in its place; it is taken without a restart"}
	rest, err := os.ReadFile(file)
	if err != nil {
		r.Found = err.Error()
		return r
	}
	var first *x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	if first == nil {
		r.Found = "there is no certificate in it"
		return r
	}
	left := first.NotAfter.Sub(x.Now())
	r.Found = fmt.Sprintf("%s is valid until %s", first.Subject, first.NotAfter.UTC().Format(time.DateTime+" MST"))
	switch {
	case left < 0:
		r.Found = fmt.Sprintf("%s ended at %s", first.Subject, first.NotAfter.UTC().Format(time.DateTime+" MST"))
	case x.Now().Before(first.NotBefore):
		r.Found = fmt.Sprintf("%s begins at %s only", first.Subject, first.NotBefore.UTC().Format(time.DateTime+" MST"))
	case left < soon:
		r.Level, r.Do = Warn, "renew it: "+left.Round(time.Hour).String()+" are left"
	default:
		r.Level, r.Do = OK, ""
	}
	return r
}

// What an agent needs of file descriptors, at most: for each node two sessions and a
// further attempt of each, for each agent check and stream its connection.
const (
	filesPerNode = 4
	filesBeside  = 1024 + 512
)

func limits(ctx context.Context, x *exam) []Result {
	nodes := 0
	for _, cl := range x.Config.Clusters {
		nodes += len(x.nodes(ctx, cl))
	}
	need := uint64(filesBeside + filesPerNode*nodes)
	r := Result{Subject: "file descriptors", Level: OK, Tried: "read RLIMIT_NOFILE of this process"}
	has, err := x.fileLimit()
	a := x.ask(ctx)
	if a != nil && a.FileLimit > 0 {
		r.Tried, has, err = "ask the running agent for its limit", a.FileLimit, nil
	}
	if err != nil {
		r.Level, r.Found, r.Do = Warn, err.Error(), fmt.Sprintf("see to it that the agent has at least %d", need)
		return []Result{r}
	}
	r.Found = fmt.Sprintf("%d, and %d nodes need %d at most", has, nodes, need)
	if a != nil && a.FileLimit > 0 {
		r.Found += fmt.Sprintf("; the agent has %d open", a.Files)
	}
	if has < need || a != nil && a.FileLimit > 0 && a.Files > has-has/5 {
		r.Level, r.Do = Warn, fmt.Sprintf("LimitNOFILE=%d or more in the agent's unit", max(need, 2*has))
	}
	results := []Result{r}
	if patroni := watchedInConsul(x.Config); patroni > 0 {
		results = append(results, consulConnections(patroni))
	}
	return results
}

func (x *exam) fileLimit() (uint64, error) {
	if x.FileLimit > 0 {
		return x.FileLimit, nil
	}
	var lim syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim)
	return uint64(lim.Max), err //nolint:unconvert // signed on some systems
}

// Consul allows 200 connections per client address (limits.http_max_conns_per_client).
// An agent has at most 130: a watch per cluster up to a hundred, and reads beside.
func consulConnections(clusters int) Result {
	uses := min(clusters, 100) + 30
	r := Result{
		Subject: "connections to Consul", Level: OK, Tried: "count the clusters that are watched",
		Found: fmt.Sprintf("%d clusters need %d of the 200 connections that Consul allows a client address by default", clusters, uses),
	}
	if uses > 100 {
		r.Level, r.Do = Warn, "count every program on this host: two such agents are too many. Raise limits.http_max_conns_per_client in the local Consul agent"
	}
	return r
}

func watchedInConsul(c *config.Config) int {
	n := 0
	for _, cl := range c.Clusters {
		if cl.UsesConsul() {
			n++
		}
	}
	return n
}
