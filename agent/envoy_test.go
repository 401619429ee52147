package agent

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/xds"
)

// envoys is what /debug/xds says.
func (r *rig) envoys() (s xds.Status) {
	r.t.Helper()
	if code, body := r.get(partStatus, "/debug/xds"); code != 200 || json.Unmarshal([]byte(body), &s) != nil {
		r.t.Fatalf("/debug/xds: %d %s", code, body)
	}
	return s
}

// client certificates of an Envoy, as a bootstrap names them.
func (a *authority) envoy(dir, name string) xds.BootstrapTLS {
	a.t.Helper()
	t := xds.BootstrapTLS{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, name+".pem"), KeyFile: filepath.Join(dir, name+".key"),
		ServerName: "127.0.0.1",
	}
	cert, key, _, _ := a.issue(name, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	})
	for file, text := range map[string]string{t.CAFile: a.pem(), t.CertFile: string(cert), t.KeyFile: string(key)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return t
}

// A real Envoy subscribes with the printed bootstrap over TLS of both sides, as
// the node that its certificate names and as no other; what it stands with is
// kept on disk and told.
func TestEnvoySubscribesOverTLS(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedEnvoy)
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r, a := newRig(t), newAuthority(t, "a")
	a.certificate(r.dir)
	own := a.envoy(r.dir, "envoy-7")
	front, err := l.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	r.write(base, listen(), "envoy: {tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}, server_ca_file: ca.pem, server_name: db.example.org}\nclusters:\n",
		clusterText("main", n1, n2), "    pools: {primary: {mode: write, listen: \""+front+"\"}, replica: {mode: read}}\n")
	r.up()
	r.settled("main", "n1", "n2")
	at, err := topology.ParseAddress(r.addr(partXDS))
	if err != nil {
		t.Fatal(err)
	}
	start := func(node string) *lab.Envoy {
		t.Helper()
		o := xds.BootstrapOptions{NodeID: node, Servers: []topology.Address{at}, TLS: own}
		// The impostor is ready only after its initial timeout; nobody waits for that.
		text := strings.ReplaceAll(xds.Bootstrap(o), "initial_fetch_timeout: 30s", "initial_fetch_timeout: 1s")
		e, err := l.Envoy(t.Context(), lab.EnvoyOptions{Bootstrap: text})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := start("envoy-7")
	s := r.envoys()
	if len(s.Streams) != 1 || s.Streams[0].Node != "envoy-7" || len(s.Streams[0].Types) != 3 {
		t.Fatalf("the streams are %+v", s.Streams)
	}
	for _, ty := range s.Streams[0].Types {
		if ty.Refused > 0 || ty.Resources == 0 || ty.All == (ty.Type == "EDS") || ty.Names != map[string]int{"EDS": 2}[ty.Type] {
			t.Errorf("%+v", ty)
		}
	}
	dump, err := e.Admin(t.Context(), "/config_dump?resource=dynamic_active_clusters")
	if err != nil || strings.Count(dump, `"sni": "db.example.org"`) != 2 || !strings.Contains(dump, "BEGIN CERTIFICATE") {
		t.Errorf("how Envoy is to speak to the nodes (%v):\n%s", err, dump)
	}
	r.until("the listeners on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(r.dir, "state", "envoy-listeners.json"))
		return err == nil && strings.Contains(string(b), `"main/primary"`)
	})
	start("envoy-8")
	if s := r.envoys(); s.Impostors == 0 || len(s.Streams) != 1 {
		t.Errorf("an Envoy with another's certificate: %d impostors, streams %+v", s.Impostors, s.Streams)
	}
	if got := r.metric(`pgsteer_sink_events_total{event="impostors",sink="xds"}`); got == "" || got == "0" {
		t.Errorf("%q impostors are counted", got)
	}
}

// TestDebugXDSWithoutServer: a path that could be asked for by habit says why it
// is not there.
func TestDebugXDSWithoutServer(t *testing.T) {
	r := newRig(t)
	r.write(base, listen("xds: off"), "clusters:\n  main: {nodes: {n1: "+freePort(t)+"}}\n")
	r.up()
	if code, body := r.get(partStatus, "/debug/xds"); code != 404 || !strings.Contains(body, "listen.xds is off") {
		t.Errorf("/debug/xds: %d %s", code, body)
	}
}

// A pool that shall prefer no zone prefers none at Envoys either.
func TestEnvoySettingsOfZones(t *testing.T) {
	cfg, err := config.Parse("pgsteer.yaml", []byte("clusters: {main: {nodes: {n1: 10.0.0.1:5432}, pools: {near: {mode: read}, far: {mode: read, prefer_zone: false}}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := new(Agent).envoySettings(cfg)
	if s.AnyZone("main", "near") || !s.AnyZone("main", "far") {
		t.Error("prefer_zone: false is not what Envoys get")
	}
}
