package e2e

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template"
)

// confdTemplate has the shape of the haproxy.tmpl that comes with Patroni for confd:
// every member in both listeners, its name from its key, its address from conn_url,
// the port to check from api_url. Its words are ours.
const confdTemplate = `{{define "members"}}
	http-check expect status 200
	default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions
{{range gets "/members/*"}}	{{$m := json .Value}}{{$api := split $m.api_url "/"}}server {{base .Key}} {{base (replace (index (split $m.conn_url "/") 2) "@" "/" -1)}} maxconn 100 check port {{index (split (index $api 2) ":") 1}}
{{end}}{{end}}global
	maxconn 100

defaults
	mode tcp
	retries 2
	timeout client 30m
	timeout connect 4s
	timeout server 30m
	timeout check 5s

listen primary
	bind *:5000
	option httpchk HEAD /primary{{template "members"}}
listen replicas
	bind *:5001
	option httpchk HEAD /replica{{template "members"}}`

// pair is a key of the store with its value, as confd's functions give it.
type pair struct{ Key, Value string }

// confd renders a template with confd's functions over the keys below a scope.
func confd(text string, store []pair) (string, error) {
	t, err := template.New("haproxy.tmpl").Funcs(template.FuncMap{
		"gets": func(pattern string) (found []pair, err error) {
			for _, p := range store {
				if ok, err := path.Match(pattern, p.Key); err != nil {
					return nil, err
				} else if ok {
					found = append(found, p)
				}
			}
			slices.SortFunc(found, func(a, b pair) int { return strings.Compare(a.Key, b.Key) })
			return found, nil
		},
		"json": func(value string) (m map[string]any, err error) { return m, json.Unmarshal([]byte(value), &m) },
		"base": path.Base, "split": strings.Split, "replace": strings.Replace,
	}).Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, nil)
	return b.String(), err
}

// haproxyConfd starts HAProxy with what confd renders from the keys that Patroni
// writes, whose api_url has the ports of pgsteer here.
func (s *setups) haproxyConfd(asks map[string]form) {
	s.t.Helper()
	store := []pair{{"/leader", "n1"}, {"/config", "{}"}}
	for _, n := range s.cluster.Nodes() {
		store = append(store, pair{"/members/" + n.Name(), fmt.Sprintf(
			`{"conn_url": "postgres://%s/postgres", "api_url": "http://%s/patroni", "state": "running", "role": "replica", "version": "4.1.5"}`,
			n.Addr(), s.health[n.Name()])})
	}
	text, err := confd(confdTemplate, store)
	s.do(err)
	for from, f := range map[string]form{"*:5000": {"primary", "confd: HEAD /primary"}, "*:5001": {"replica", "confd: HEAD /replica"}} {
		addr := s.addr()
		text = strings.Replace(text, from, addr, 1)
		asks[addr] = f
	}
	s.balancer(text)
}
