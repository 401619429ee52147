package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// The files of examples/envoy, as a user would copy them, with the real program
// and a real Envoy; and what Envoy itself tells after a switchover.
func TestExampleEnvoy(t *testing.T) {
	t.Parallel()
	f := &front{rig: newRig(t, lab.NeedEnvoy)}
	f.write, f.read = f.addr(), f.addr()
	f.envoyWrite, f.envoyRead = f.write, f.read
	f.cluster = f.newCluster(lab.ClusterOptions{ProbeUser: "pgsteer"})
	f.reigns = []reign{{node: f.node("n1")}}
	f.configure("%s", example(t, "envoy/pgsteer.yaml", map[string]string{
		"10.0.0.1:5432": f.node("n1").Addr(), "10.0.0.2:5432": f.node("n2").Addr(), "10.0.0.3:5432": f.node("n3").Addr(),
		"127.0.0.1:5000": f.write, "127.0.0.1:5001": f.read,
		"/etc/pgsteer/probe.pw": f.password(f.cluster.Password("pgsteer")),
	}))
	f.up()
	f.exampleEnvoy()
	held := watchEnd(t, f.session(f.write, f.node("n1").Port()))
	tr := f.clients(f.write, f.read)
	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	<-held
	f.is("main", "replica", "n1", topology.Up, topology.CodeReplica)
	f.onlyWriters("held sessions", tr.held.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	f.readsReach("n1", "n3")
	for path, want := range map[string]string{
		"/config_dump?resource=dynamic_listeners": `"writer/n2"`,
		"/clusters": "main/primary::" + f.node("n2").Addr() + "::health_flags::healthy",
	} {
		text, err := f.envoy.Admin(t.Context(), path)
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%s does not say %s (%v):\n%s", path, want, err, text)
		}
	}
}

// exampleEnvoy runs the script and starts Envoy with what it printed.
func (f *front) exampleEnvoy() {
	f.t.Helper()
	unit := example(f.t, "envoy/envoy.service", nil)
	if !strings.Contains(unit, "--drain-time-s 0 --drain-strategy immediate") { // as the lab has it
		f.t.Error("the unit has another drain time")
	}
	envoy, err := lab.EnvoyProgram()
	if err != nil {
		f.t.Fatal(err)
	}
	script := example(f.t, "envoy/bootstrap.sh", map[string]string{"127.0.0.1:7434": f.xds, "--check": "--check --envoy '" + envoy + "'"})
	cmd := exec.CommandContext(f.t.Context(), "sh", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(buildProgram(f.t))+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("bootstrap.sh: %v", err)
	}
	if f.envoy, err = f.lab.Envoy(f.t.Context(), lab.EnvoyOptions{Bootstrap: string(out)}); err != nil {
		f.t.Fatal(err)
	}
	f.until("Envoy to let writes and reads through", func() bool { return f.reached(f.write) != 0 && f.reached(f.read) != 0 })
}
