package haproxycfg

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shown is a bind in short: its line, then what it takes.
func shown(b Bind) string {
	s := fmt.Sprintf("%d ", b.Line.Number)
	switch {
	case b.Path != "":
		s += b.Path
	case !b.Host.IsValid():
		s += fmt.Sprintf("?:%d-%d", b.First, b.Last)
	default:
		s += fmt.Sprintf("%s:%d-%d", b.Host, b.First, b.Last)
	}
	for word, set := range map[string]bool{" v6only": b.V6Only, " v4v6": b.V4V6} {
		if set {
			s += word
		}
	}
	if b.Vague {
		s += " vague"
	}
	return s
}

// The forms of addresses are those of HAProxy's manual, below "Address formats".
func TestBinds(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{
			"addresses", "frontend f\n bind :5000\n bind *:5001 ssl crt \"${CERTS}/a.pem\"\n bind 10.0.0.1:5002-5005\n bind ipv4@10.0.0.1:1,ipv6@:2\n bind [::1]:3\n bind ::1:4\n bind :::5 v6only\n bind :::6 v4v6 # a\n",
			[]string{"2 0.0.0.0:5000-5000", "3 0.0.0.0:5001-5001", "4 10.0.0.1:5002-5005", "5 10.0.0.1:1-1", "5 :::2-2", "6 ::1:3-3", "7 ::1:4-4", "8 :::5-5 v6only", "9 :::6-6 v4v6"},
		},
		{
			"sockets", "global\n stats socket /run/a.sock level admin\n stats socket ipv4@127.0.0.1:9999\n unix-bind mode 0700 prefix /jail\n stats timeout 1m\nlisten l\n bind /b.sock mode 600\n bind unix@/c.sock\n bind 'with blank'\n bind \"/d e.sock\"\n",
			[]string{"2 /run/a.sock", "3 127.0.0.1:9999-9999", "7 /jail/b.sock", "8 /jail/c.sock", "9 ?:0-65535 vague", "10 /jail/d e.sock"},
		},
		{"take no port", "listen l\n bind abns@x\n bind sockpair@3\n bind udp@:1\n bind quic4@:443\n log-forward\n", nil},
		{
			"not to be told", "listen l\n bind fd@3\n bind ${A}:1\n bind \"${A}:1\"\n bind *:${P}\n bind name:7\n bind fe80::1%eth0:8\n bind *:0\n bind *:9-8\n bind *:70000\n bind *\n",
			[]string{"2 ?:0-65535 vague", "3 ?:0-65535 vague", "4 ?:0-65535 vague", "5 ?:0-65535 vague", "6 ?:7-7 vague", "7 ?:8-8 vague", "8 ?:0-65535 vague", "9 ?:0-65535 vague", "10 ?:0-65535 vague", "11 ?:0-65535 vague"},
		},
		{
			"judged otherwise", "listen l\n bind :1 interface eth0\n bind :2 namespace n\n bind :3 transparent\n bind :4 name interfaces\n",
			[]string{"2 0.0.0.0:1-1 vague", "3 0.0.0.0:2-2 vague", "4 0.0.0.0:3-3 vague", "5 0.0.0.0:4-4"},
		},
		{"conditional", "listen l\n bind :1\n.if defined(A)\n bind :2\n.else\n bind :3\n.endif\n bind :4\n", []string{"2 0.0.0.0:1-1", "4 0.0.0.0:2-2 vague", "6 0.0.0.0:3-3 vague", "8 0.0.0.0:4-4"}},
		{"disabled", "listen l\n bind :1\n disabled\n bind :2\nlisten m\n bind :3\ndefaults\n disabled\nlisten n\n bind :4\n", []string{"2 0.0.0.0:1-1 vague", "4 0.0.0.0:2-2 vague", "6 0.0.0.0:3-3", "10 0.0.0.0:4-4 vague"}},
		{"elsewhere", "bind :1\npeers p\n bind :2\nbackend b\n stats socket :3\n# bind :4\n", []string{"3 0.0.0.0:2-2 vague"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, b := range Binds(Lines("f", []byte(tt.text))) {
				got = append(got, shown(b))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOverlaps(t *testing.T) {
	at := func(address string) Bind {
		b := Binds(Lines("f", []byte("listen l\n bind "+address+"\n")))
		if len(b) != 1 {
			t.Fatalf("%s: %v", address, b)
		}
		return b[0]
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:5000", "127.0.0.1:5000", true},
		{"127.0.0.1:5000", "127.0.0.2:5000", false},
		{"127.0.0.1:5000", "127.0.0.1:5001", false},
		{"127.0.0.1:5000-5003", "127.0.0.1:5003-5009", true},
		{"127.0.0.1:5000-5003", "127.0.0.1:5004-5009", false},
		{"*:5000", "127.0.0.1:5000", true},
		{":::5000", "127.0.0.1:5000", true},
		{"[::ffff:127.0.0.1]:5000", "127.0.0.1:5000", true},
		{"name:5000", "127.0.0.1:5000", true},
		{"name:5000", "127.0.0.1:5001", false},
		{"${A}:1", "127.0.0.1:5001", true},
		{"/a", "/a", true},
		{"/a", "/b", false},
		{"/a", "${A}:1", false},
	} {
		if a, b := at(tt.a), at(tt.b); a.Overlaps(b) != tt.want || b.Overlaps(a) != tt.want {
			t.Errorf("%s and %s: %v and %v, want %v", tt.a, tt.b, a.Overlaps(b), b.Overlaps(a), tt.want)
		}
	}
}

// FuzzBinds: whatever a file holds, no bind is without a place.
func FuzzBinds(f *testing.F) {
	f.Add("global\n stats socket /a\nlisten l\n bind *:1-3,[::]:4 v6only\n.if x\n disabled\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, b := range Binds(Lines("f", []byte(text))) {
			if b.Path == "" && b.First > b.Last || !b.Vague && b.Path == "" && (b.First == 0 || !b.Host.IsValid()) {
				t.Errorf("%+v", b)
			}
			if !b.Overlaps(b) {
				t.Errorf("%+v does not meet itself", b)
			}
		}
	})
}
