package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds"
)

type bootstrapCmd struct {
	NodeID     string   `default:"envoy" help:"Envoy's node id (${default}). With envoy.tls.client_ca_file it must be a name in Envoy's certificate."`
	Cluster    string   `default:"pg-clients" help:"Envoy's node cluster (${default})."`
	Clusters   []string `help:"Database clusters this Envoy needs. Agents send nothing for a name that they do not know: it is refused by --config, by --address, or by the agent of this host where --server names that one; else it is said that nobody was asked."`
	Config     string   `short:"c" type:"path" placeholder:"FILE" help:"The agents' configuration file: a cluster that it lacks is refused."`
	Address    string   `placeholder:"HOST:PORT" help:"Status listener of a running agent, or the path of its socket: a cluster that it lacks is refused."`
	Zone       string   `help:"The zone in which this Envoy is: its read pools prefer the nodes of that zone."`
	Server     []string `default:"127.0.0.1:7434" placeholder:"HOST:PORT" help:"The agents' xDS listeners (${default}); Envoy asks another one when its own is away."`
	Files      string   `placeholder:"DIR" help:"Read the files of this folder (envoy.files) instead of subscribing, and so start without an agent. An absolute path."`
	Admin      string   `default:"127.0.0.1:9901" placeholder:"HOST:PORT" help:"Envoy's admin address (${default})."`
	CAFile     string   `placeholder:"FILE" help:"Certificates that the agents' must be signed by; makes Envoy speak TLS. Envoy reads this file and the next two when it starts."`
	CertFile   string   `placeholder:"FILE" help:"Envoy's certificate."`
	KeyFile    string   `placeholder:"FILE" help:"Its key."`
	Secrets    string   `placeholder:"DIR" help:"Write two small files into this folder, by which Envoy follows its certificates: those that are moved into place are used from its next connection on. The folder and the three files by absolute paths."`
	ServerName string   `placeholder:"NAME" help:"Name in the agents' certificates; needed with --ca-file and several agents."`
	Check      bool     `help:"Let Envoy itself validate the file (envoy --mode validate) before it is printed."`
	Envoy      string   `default:"envoy" placeholder:"PATH" help:"The program for --check (${default})."`
}

// Validate refuses combinations that no Envoy could use.
func (c *bootstrapCmd) Validate() error {
	switch {
	case c.Config != "" && c.Address != "":
		return errors.New("--config and --address exclude each other: one of them says which clusters there are")
	case c.Files != "" && !filepath.IsAbs(c.Files):
		return errors.New("--files must be an absolute path: Envoy's own folder is another one")
	case c.Files != "" && c.Zone != "":
		return errors.New("--zone has no effect with --files, which every Envoy reads alike")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("--cert-file and --key-file need each other")
	case c.CAFile == "" && c.CertFile+c.ServerName != "":
		return errors.New("--cert-file and --server-name need --ca-file, without which Envoy speaks no TLS")
	case c.Secrets != "" && c.CAFile == "":
		return errors.New("--secrets needs --ca-file, without which Envoy speaks no TLS")
	case c.Secrets != "" && slices.ContainsFunc([]string{c.Secrets, c.CAFile, c.CertFile, c.KeyFile}, func(p string) bool { return p != "" && !filepath.IsAbs(p) }):
		return errors.New("--secrets and the files of certificates must be absolute paths then: Envoy's own folder is another one")
	case c.CAFile != "" && c.ServerName == "" && len(c.Server) > 1:
		return errors.New("--ca-file needs --server-name when there are several agents")
	}
	return nil
}

// Run prints the bootstrap file.
func (c *bootstrapCmd) Run(ctx context.Context, std streams) error {
	if err := c.known(ctx, std); err != nil {
		return err
	}
	o := xds.BootstrapOptions{NodeID: c.NodeID, Cluster: c.Cluster, Clusters: c.Clusters, Zone: c.Zone, Files: c.Files}
	for _, s := range c.Server {
		server, err := topology.ParseAddress(s)
		if err != nil {
			return misused("--server: %w", err)
		}
		o.Servers = append(o.Servers, server)
	}
	var err error
	if o.AdminAddress, err = topology.ParseAddress(c.Admin); err != nil {
		return misused("--admin: %w", err)
	}
	if o.TLS = (xds.BootstrapTLS{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, ServerName: c.ServerName, Secrets: c.Secrets}); c.CAFile != "" && c.ServerName == "" {
		o.TLS.ServerName = o.Servers[0].Host
	}
	for path, text := range o.TLS.SecretFiles() {
		if err := renameio.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("--secrets: %w", err)
		}
	}
	text := xds.Bootstrap(o)
	if c.Check {
		if err := validateEnvoy(ctx, c.Envoy, text); err != nil {
			return err
		}
	}
	_, err = io.WriteString(std.out, text)
	return err
}

// known refuses clusters that the configuration, or the agent, lacks. Envoy would never
// hear that there is none. Where neither is at hand, it says that it did not look.
func (c *bootstrapCmd) known(ctx context.Context, std streams) error {
	names, of, err := c.listed(ctx)
	if nobody, is := errors.AsType[*nobodyAsked](err); is && len(c.Clusters) > 0 {
		_, err = fmt.Fprintf(std.err, "pgsteer: --clusters %s was not checked: %s. Agents send nothing for a name that they do not know; --config FILE or --address HOST:PORT says which there are\n", strings.Join(c.Clusters, ","), nobody.why)
		return err
	} else if is {
		return nil
	}
	if err != nil {
		return err
	}
	var unknown []string
	for _, asked := range c.Clusters {
		if !slices.Contains(names, asked) {
			unknown = append(unknown, config.UnknownWord(asked, names))
		}
	}
	if len(unknown) > 0 {
		return misused("--clusters: %s, the clusters of %s; nothing is printed", strings.Join(unknown, "; "), of)
	}
	return nil
}

// nobodyAsked says why it is not known which clusters there are.
type nobodyAsked struct{ why string }

func (e *nobodyAsked) Error() string { return e.why }

// localStatus is where the agent of this host tells its status unless it is configured
// otherwise.
const localStatus = "127.0.0.1:7433"

// listed are the clusters that there are, and by whose word.
func (c *bootstrapCmd) listed(ctx context.Context) (names []string, of string, err error) {
	if c.Config != "" {
		cfg, err := config.Load(c.Config)
		if err != nil {
			return nil, "", err
		}
		return cfg.ClusterNames(), c.Config, nil
	}
	if len(c.Clusters) == 0 {
		return nil, "", &nobodyAsked{"there is none"}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	address := cmp.Or(c.Address, localStatus)
	var r status.Report
	err = running{Address: address}.get(ctx, "/api/v1/status", &r)
	switch {
	case err != nil && c.Address != "":
		return nil, "", fmt.Errorf("--address: %w; nothing is printed", err)
	case err != nil:
		return nil, "", &nobodyAsked{"no agent answers at " + address}
	case c.Address == "" && !c.servedBy(r.Agent.Listeners):
		return nil, "", &nobodyAsked{"the agent at " + address + " is not the one of --server"}
	}
	for _, cl := range r.Clusters {
		names = append(names, cl.Name)
	}
	return names, "the agent at " + address, nil
}

// servedBy reports whether this host's agent, with those listeners, is one that the
// Envoy subscribes to, or whose files it reads.
func (c *bootstrapCmd) servedBy(listeners map[string]string) bool {
	if c.Files != "" {
		return true
	}
	here, err := netip.ParseAddrPort(listeners["xds"])
	return err == nil && slices.ContainsFunc(c.Server, func(s string) bool {
		at, err := topology.ParseAddress(s)
		if err != nil || at.Port != here.Port() {
			return false
		}
		ip, is := at.IP()
		return is && (ip.IsLoopback() || ip.Unmap() == here.Addr().Unmap()) || at.Host == "localhost"
	})
}

// validateEnvoy lets Envoy read a file without starting.
func validateEnvoy(ctx context.Context, program, text string) error {
	f, err := os.CreateTemp("", "envoy-*.yaml")
	if err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("--check: %w", errors.Join(err, f.Close()))
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--mode", "validate", "-c", f.Name(), "-l", "error").CombinedOutput()
	if _, refused := errors.AsType[*exec.ExitError](err); refused {
		return fmt.Errorf("%s refuses the file, nothing is printed: %s", program, strings.TrimSpace(string(out)))
	}
	if err != nil {
		return fmt.Errorf("--check: run %s: %w; name it with --envoy", program, err)
	}
	return nil
}

// envoys prints what is served to Envoys.
func (c *statusCmd) envoys(ctx context.Context, std streams) error {
	var s xds.Status
	if err := c.get(ctx, "/debug/xds", &s); err != nil {
		return err
	}
	if c.Output == "json" {
		return c.json(std, s)
	}
	switch waiting := strings.Join(s.Waiting, " "); {
	case !s.Answering:
		fmt.Fprintf(std.out, "No Envoy is answered before these clusters are decided: %s\n", waiting)
	case waiting != "":
		fmt.Fprintf(std.out, "These clusters are not decided; Envoys hear nothing of them and keep what they have: %s\n", waiting)
	}
	for _, l := range s.Held {
		fmt.Fprintf(std.out, "Listener %s differs from the configuration; it changes with envoy.release, and in a write pool with the writer.\n", l)
	}
	for _, c := range s.HeldClusters {
		fmt.Fprintf(std.out, "Cluster %s differs from the configuration; it changes with envoy.release.\n", c)
	}
	for _, st := range s.Streams {
		for _, l := range st.Uncut {
			fmt.Fprintf(std.out, "Envoy %s refused the listener %s and keeps what it had: its sessions there are not cut when the writer changes.\n", st.Node, l)
		}
	}
	if len(s.Streams) == 0 {
		fmt.Fprintln(std.out, "No Envoy is subscribed.")
		return nil
	}
	w := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPEER\tPROTOCOL\tAGE\tTYPE\tASKED FOR\tSENT\tRESOURCES\tACKED\tREFUSED\tWHY")
	for _, st := range s.Streams {
		for _, t := range st.Types {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", st.Node, st.Peer, st.Protocol,
				time.Since(st.Since).Round(time.Second), t.Type, t.Asked(), t.Sent, t.Resources, t.Acked, t.Refused, strings.ReplaceAll(strings.TrimSpace(t.Refusal), "\n", "; "))
		}
	}
	return w.Flush()
}
