package tap

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestHideText(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"connect: connection refused", "connect: connection refused"},
		{`cannot parse "postgres://bob:hunter2@db/x": no`, `cannot parse "postgres://bob:****@db/x": no`},
		{"http://bob:hun%40ter2@10.0.0.1:8008/patroni", "http://bob:****@10.0.0.1:8008/patroni"},
		{"http://10.0.0.1:8008/patroni", "http://10.0.0.1:8008/patroni"},
		{"get http://10.0.0.1:8008/a@b and http://x:y@z", "get http://10.0.0.1:8008/a@b and http://x:****@z"},
		{"host=db password=hunter2 user=bob", "host=db password=**** user=bob"},
		{"host=db password='hun ter2' user=bob", "host=db password=**** user=bob"},
		{`password="hun ter2", user`, `password=****, user`},
		{`{"password": "hunter2"}`, `{"password": ****}`},
		{"PGPASSWORD=hunter2 psql", "PGPASSWORD=**** psql"},
		{"sslpassword=hunter2", "sslpassword=****"},
		{"X-Consul-Token: 8a7b", "X-Consul-Token: ****"},
		{"?token=8a7b&dc=x", "?token=****&dc=x"},
		{"Authorization: Bearer abc.def", "Authorization: ****"},
		{"client_secret=abc", "client_secret=****"},
		{`password authentication failed for user "bob"`, `password authentication failed for user "bob"`},
		{"with the token of /etc/token", "with the token of /etc/token"},
		{"it says correct-horse here", "it says **** here"},
		{"correct-horse", "****"},
	} {
		if got := hideText(tt.text, []string{"", "correct-horse"}, true); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.text, got, tt.want)
		}
	}
	if got := hideText("postgres", []string{"postgres"}, false); got != "postgres" {
		t.Errorf("a name was taken for the password: %s", got)
	}
}

// Wherever a text stands in a line, now or some day, no secret is in it.
func TestNoFieldShowsASecret(t *testing.T) {
	const url, known = "http://bob:hunter2@10.0.0.1/", "correct-horse"
	for _, text := range []string{url, "password=hunter2"} {
		var l Line
		fill(t, reflect.ValueOf(&l).Elem(), func(string) string { return text }, "")
		l.Kind = KindObservation
		if b, err := redacted(l, []string{known}); err != nil || strings.Contains(string(b), "hunter2") {
			t.Errorf("%v: %s", err, b)
		}
	}
	o := topology.Observation{Failure: &topology.Failure{Text: "a " + known}, Authority: &topology.Authority{Members: []topology.Member{
		{APIURL: "http://" + known, Tags: map[string]string{"x": known, "password": "hunter2"}},
	}}}
	b, err := redacted(Line{Kind: KindObservation, Observation: (*Observation)(&o)}, []string{known})
	if err != nil || strings.Contains(string(b), known) || strings.Contains(string(b), "hunter2") {
		t.Errorf("%v: %s", err, b)
	}
}
