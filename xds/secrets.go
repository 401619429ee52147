package xds

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// Names of Envoy's secrets, and of the files that describe them with ".yaml".
const (
	secretOwn   = "pgsteer-own"
	secretRoots = "pgsteer-roots"
)

// SecretFiles are the files, by path, that must be in Secrets before Envoy starts;
// nil without Secrets. They only name the certificates' files, whose folders Envoy
// then watches, and never change.
func (t BootstrapTLS) SecretFiles() map[string]string {
	if t.CAFile == "" || t.Secrets == "" {
		return nil
	}
	all := map[string]string{t.secret(secretRoots): fmt.Sprintf(secretHead, secretRoots) +
		fmt.Sprintf("  validation_context:\n    trusted_ca: {filename: %s}\n", strconv.Quote(t.CAFile))}
	if t.CertFile != "" {
		all[t.secret(secretOwn)] = fmt.Sprintf(secretHead, secretOwn) +
			fmt.Sprintf("  tls_certificate:\n    certificate_chain: {filename: %s}\n    private_key: {filename: %s}\n", strconv.Quote(t.CertFile), strconv.Quote(t.KeyFile))
	}
	return all
}

func (t BootstrapTLS) secret(name string) string { return filepath.Join(t.Secrets, name+".yaml") }

// byFile is where Envoy finds a secret.
func (t BootstrapTLS) byFile(name string) string {
	return fmt.Sprintf("{name: %s, sds_config: {path_config_source: {path: %s}, resource_api_version: V3}}", name, strconv.Quote(t.secret(name)))
}

const secretHead = `# Names the files of Envoy's certificates, which it then follows. See envoy-bootstrap.
resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: %s
`
