package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// certificateLife is how long a certificate of a lab is good.
const certificateLife = 2 * time.Hour

// Authority signs certificates for the servers and clients of a lab.
type Authority struct {
	cert *x509.Certificate // nil while it signs its own
	key  *ecdsa.PrivateKey
	pem  string
}

// Certificate is a certificate and its key, in PEM.
type Certificate struct{ Cert, Key string }

// NewAuthority returns an authority with a certificate that it signed itself. Its
// name is its own: those who trust several would else mistake one for the other.
func NewAuthority() (*Authority, error) {
	a := new(Authority)
	own, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "lab " + rand.Text()}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	a.pem = own.Cert
	return a, err
}

// PEM returns the authority's own certificate, which those who trust it need.
func (a *Authority) PEM() string { return a.pem }

// Issue makes a certificate for a server or a client that has these names, host
// names or literal addresses. The first one is its common name too.
func (a *Authority) Issue(names ...string) (Certificate, error) {
	draft := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			draft.IPAddresses = append(draft.IPAddresses, ip)
		} else {
			draft.DNSNames = append(draft.DNSNames, n)
		}
	}
	return a.sign(draft)
}

// sign makes a key and signs a draft for it; the first one is the authority's own.
func (a *Authority) sign(draft *x509.Certificate) (Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Certificate{}, fmt.Errorf("lab: making a key: %w", err)
	}
	now := time.Now()
	draft.SerialNumber = big.NewInt(now.UnixNano())
	draft.NotBefore, draft.NotAfter = now.Add(-certificateLife), now.Add(certificateLife)
	if a.cert == nil {
		a.cert, a.key = draft, key
	}
	der, err := x509.CreateCertificate(rand.Reader, draft, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("lab: signing a certificate for %s: %w", draft.Subject.CommonName, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Certificate{}, fmt.Errorf("lab: writing the key of %s: %w", draft.Subject.CommonName, err)
	}
	return Certificate{
		Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key:  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
	}, nil
}
