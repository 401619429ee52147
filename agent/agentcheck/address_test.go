package agentcheck

import (
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// A verdict is on the node at its present address, which the pool's own port may be
// part of. A server at another one is down, whatever the verdict.
func TestAnswerAtAnAddress(t *testing.T) {
	main := cluster("main")
	main.Pools[0].Nodes[0].Address = topology.Address{Host: "2001:db8::1", Port: 6432}
	main.Pools[0].Nodes[1].Verdict = topology.Undecided
	main.Pools[0].Nodes[2].Address = topology.Address{Host: "db3.example", Port: 5432}
	elsewhere := "down #at another address: n1 is at [2001:db8::1]:6432\n"
	for _, admin := range []AdminWords{AdminNever, AdminAlways} {
		w := newWorld(main)
		s := w.server(t, Options{AdminWords: admin})
		for request, want := range map[string]string{
			"main primary n1 [2001:db8::1]:6432":           "up 100%\n",
			"main primary n1 [2001:DB8:0::1]:6432":         "up 100%\n",
			"main primary n1 [2001:db8::1]:5432":           elsewhere, // the node's port, not the pool's
			"main primary n1 10.0.0.1:5432":                elsewhere,
			"main primary n1 10.0.0.1":                     elsewhere,
			"main primary n2 10.0.0.2:5432":                "",
			"main primary n2 10.0.0.1:5432":                "down #at another address: n2 is at 10.0.0.2:5432\n",
			"main primary n3 db3.example:5432":             "down #in recovery\n",
			"main replica n3 10.0.0.3:5432":                "up 0% #lag 25MB > 16MB\n",
			"main replica n3 10.0.0.2:5432":                "down #at another address: n3 is at 10.0.0.3:5432\n",
			"main primary n9 10.0.0.9:5432":                "down #unknown main/primary/n9/10.0.0.9:5432\n",
			"main primary !guard 10.0.0.9:5432":            "down #open: n1 is up\n",
			"main primary n1 [2001:db8::1]:6432 and so on": "down #unknown main/primary/n1/[2001:db8::1]:6432/and/so/on\n",
		} {
			got := string(s.Answer([]byte(request)))
			if admin == AdminAlways {
				for _, word := range []string{"ready ", "maint ", "drain "} {
					got = strings.TrimPrefix(got, word)
				}
				want = strings.Replace(want, "up 0%", "up 100%", 1)
			}
			if got != want {
				t.Errorf("Answer(%q) = %q, want %q", request, got, want)
			}
		}
		moved := cluster("main") // the answers follow the address
		w.set(moved)
		if got := string(s.Answer([]byte("main primary n1 [2001:db8::1]:6432"))); !strings.HasSuffix(got, "down #at another address: n1 is at 10.0.0.1:5432\n") {
			t.Errorf("at the address of before: %q", got)
		}
		if got := string(s.Answer([]byte("main primary n1 10.0.0.1:5432"))); !strings.HasSuffix(got, "up 100%\n") {
			t.Errorf("at the new address: %q", got)
		}
	}
}

// Only literal addresses can differ. A node whose name is not resolved yet, or that a
// source lists without an address, is answered for as if no address had been asked:
// what is undecided stays silent, and no session is cut over it. The same holds for
// a name in agent-send.
func TestAnswerAtAnAddressThatCannotBeCompared(t *testing.T) {
	main := cluster("main")
	main.Pools[0].Nodes[0].Verdict, main.Pools[0].Nodes[0].Address = topology.Undecided, topology.Address{Host: "db1.example", Port: 5432}
	main.Pools[0].Nodes[1].Verdict, main.Pools[0].Nodes[1].Address = topology.Undecided, topology.Address{}
	main.Pools[1].Nodes[1].Address = topology.Address{Host: "db2.example", Port: 5432}
	s := newWorld(main).server(t, Options{})
	for request, want := range map[string]string{
		"main primary n1 10.0.0.1:5432":       "",
		"main primary n1 [2001:db8::1]:5432":  "",
		"main primary n1 db1.example:5432":    "",
		"main primary n1 db9.example:5432":    "",
		"main primary n2 10.0.0.2:5432":       "",
		"main primary n2 db2.example:5432":    "",
		"main replica n2 10.0.0.2:5432":       "up 50% #lag 70MB > 64MB but last\n",
		"main replica n3 db3.example:5432":    "up 0% #lag 25MB > 16MB\n",                           // the node's is literal
		"main replica n3 10.0.0.3":            "down #at another address: n3 is at 10.0.0.3:5432\n", // no address
		"main replica n3 ::ffff:10.0.0.3":     "down #at another address: n3 is at 10.0.0.3:5432\n",
		"main replica n3 [::ffff:a00:3]:5432": "up 0% #lag 25MB > 16MB\n",
	} {
		if got := string(s.Answer([]byte(request))); got != want {
			t.Errorf("Answer(%q) = %q, want %q", request, got, want)
		}
	}
}
