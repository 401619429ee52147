package xds

import (
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	yaml "go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestBootstrap(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    BootstrapOptions
		want string // how Envoy finds the agent
	}{
		{"defaults", BootstrapOptions{}, "STATIC"},
		{"all", BootstrapOptions{
			NodeID: `app "7"`, Cluster: "apps", Clusters: []string{"main", "beta"},
			Servers:      []topology.Address{{Host: "10.0.0.1", Port: 18001}, {Host: "pgsteer.example.org", Port: 18001}},
			TLS:          BootstrapTLS{CAFile: "/etc/envoy/ca.pem", CertFile: "/etc/envoy/me.pem", KeyFile: "/etc/envoy/me.key", ServerName: "pgsteer.example.org"},
			AdminAddress: topology.Address{Host: "::1", Port: 9901},
		}, "STRICT_DNS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := Bootstrap(tc.o)
			b := parseBootstrap(t, file)
			if err := b.ValidateAll(); err != nil {
				t.Fatal(err)
			}
			c := b.GetStaticResources().GetClusters()[0]
			same(t, "discovery", tc.want, c.GetType().String())
			same(t, "agents", max(1, len(tc.o.Servers)), len(c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()))
			same(t, "TLS", tc.o.TLS.CAFile != "", c.GetTransportSocket() != nil)
			var http httpv3.HttpProtocolOptions
			if err := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalTo(&http); err != nil {
				t.Fatal(err)
			}
			alive := http.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
			same(t, "a half-open connection is found after", 15*time.Second, alive.GetInterval().AsDuration()+alive.GetTimeout().AsDuration())
			same(t, "protocol", corev3.ApiConfigSource_DELTA_GRPC, b.GetDynamicResources().GetAdsConfig().GetApiType())
			same(t, "admin", tc.o.AdminAddress.Host, b.GetAdmin().GetAddress().GetSocketAddress().GetAddress())
			s := new(stream)
			s.store, s.notes = newStore(), newNotes(new(ledger), topology.NewTicker(time.Now), "", "")
			if err := s.identify(b.GetNode()); err != nil {
				t.Error(err)
			}
			same(t, "clusters", len(tc.o.Clusters), len(s.only))
			if !strings.Contains(file, "--drain-time-s 0 --drain-strategy immediate") {
				t.Error("the command line is not told")
			}
		})
	}
}

// certificate is one of a server in a test, in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// TestBootstrapPleasesEnvoy: Envoy itself takes the file, with and without TLS.
func TestBootstrapPleasesEnvoy(t *testing.T) {
	binary, dir := findEnvoy(t), t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	secure := BootstrapTLS{CAFile: write("ca.pem", certificate(t)), ServerName: "agents.example.org"}
	server := topology.Address{Host: "pgsteer.example.org", Port: 18001}
	for name, o := range map[string]BootstrapOptions{
		"plain": {}, "several": {Servers: []topology.Address{server, {Host: "::1", Port: 1}}, AdminAddress: topology.Address{Host: "127.0.0.1", Port: 9901}},
		"secure": {Servers: []topology.Address{server}, TLS: secure, Clusters: []string{"main"}},
	} {
		out, err := exec.Command(binary, "--mode", "validate", "-l", "error", "-c", write(name+".yaml", Bootstrap(o))).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func parseBootstrap(t *testing.T, file string) *bootstrapv3.Bootstrap {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(file), &tree); err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(raw, b); err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	return b
}
