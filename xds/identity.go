package xds

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// certified are the names in a client's verified certificate: a node id is only a
// claim, and whoever has a certificate must not read another one's databases. Nil
// for a client that was asked for none.
func certified(p *peer.Peer) []string {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	leaf := info.State.VerifiedChains[0][0]
	names := append([]string{}, leaf.DNSNames...)
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	if cn := leaf.Subject.CommonName; cn != "" {
		names = append(names, cn)
	}
	return names
}
