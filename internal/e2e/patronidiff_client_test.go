package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// identity is a certificate that everybody has, as server and as client, and the one
// that signed it.
type identity struct {
	certFile, keyFile, caFile string
	client                    *tls.Config // shows the certificate
	stranger                  *tls.Config // shows none
}

func newIdentity(t *testing.T, dir string) identity {
	t.Helper()
	ca, err := lab.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	own, err := ca.Issue("lab", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	id := identity{certFile: filepath.Join(dir, "lab.crt"), keyFile: filepath.Join(dir, "lab.key"), caFile: filepath.Join(dir, "lab-ca.crt")}
	for path, text := range map[string]string{id.certFile: own.Cert, id.keyFile: own.Key, id.caFile: ca.PEM()} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { // for Patroni's account too
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair([]byte(own.Cert), []byte(own.Key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca.PEM()))
	id.stranger = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	id.client = id.stranger.Clone()
	id.client.Certificates = []tls.Certificate{pair}
	return id
}

// over returns a question that is asked over TLS.
func (q question) over(c *tls.Config, topic string) question {
	q.tls, q.topic = c, q.topic+" "+topic
	return q
}

// manners are clients that do not send a request and read its answer. The word is
// for the table.
var manners = map[string]func(net.Conn, string) reply{
	"in pieces": func(c net.Conn, raw string) reply {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for part := range 8 { // in less than a second
			if _, err := io.WriteString(c, raw[len(raw)*part/8:len(raw)*(part+1)/8]); err != nil {
				return reply{}
			}
			<-tick.C
		}
		return read(c)
	},
	"half of it": func(c net.Conn, raw string) reply {
		_, _ = io.WriteString(c, raw[:len(raw)/2]) // an error shows as no answer
		return read(c)
	},
	"reset after the status line": func(c net.Conn, raw string) reply {
		if _, err := io.WriteString(c, raw); err != nil {
			return reply{}
		}
		b := make([]byte, len("HTTP/1.1 200"))
		_, _ = io.ReadFull(c, b) // an error shows as no answer
		_ = c.(*net.TCPConn).SetLinger(0)
		return parseReply(b)
	},
}

// wordedManner are the rows of the manual that say in words how these are answered.
var wordedManner = map[string][]string{"half of it": {"half-requests"}}

// clients: those that are slow, rude, or speak TLS.
func (d *diffRig) clients() {
	leader, replica := question{ref: local, row: "M1"}, question{ref: "main/n2", row: "M5"}
	d.step("slow and rude clients", func() {
		// One round of them lasts longer than pgsteer may take to settle, so that is first.
		d.compare("slow and rude clients", []question{leader.get("/primary"), replica.get("/replica")})
		var all []question
		for manner := range manners {
			for _, q := range []question{leader.get("/primary"), replica.get("/replica"), replica.get("/primary")} {
				q.manner, q.topic, q.known = manner, q.topic+" "+manner, wordedManner[manner]
				all = append(all, q)
			}
		}
		d.compare("slow and rude clients", all)
	})
	d.step("silent clients", func() {
		free := d.silence(8)
		q := leader.get("/primary")
		q.known = worded["silent"]
		d.compare("silent clients", []question{q})
		free()
		d.compare("silent clients are gone", []question{leader.get("/primary")})
	})
	d.overTLS(leader, replica)
}

// silence opens connections to the leader's Patroni and to the agents and says
// nothing on them, until free is called.
func (d *diffRig) silence(count int) (free func()) {
	d.t.Helper()
	var all []net.Conn
	addrs := []string{d.node(local).RESTAddr()}
	for _, r := range d.agents {
		addrs = append(addrs, r.health)
	}
	for _, addr := range addrs {
		for range count {
			c, err := net.DialTimeout("tcp", addr, 4*time.Second)
			d.do(err)
			all = append(all, c)
		}
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// overTLS asks everything over TLS, with a certificate and without.
func (d *diffRig) overTLS(leader, replica question) {
	keys := map[string]any{
		"certfile": d.identity.certFile, "keyfile": d.identity.keyFile, "cafile": d.identity.caFile, "verify_client": "required",
	}
	d.step("TLS", func() {
		d.restAPI(keys, d.identity.client)
		var all []question
		for _, at := range []question{leader, replica} {
			for _, q := range d.questions(at.ref, at.row) {
				if !q.body {
					all = append(all, q.over(d.identity.client, "over TLS"))
				}
			}
			all = append(all, at.get("/primary").over(d.identity.stranger, "over TLS without a certificate"),
				at.get("/primary").over(&tls.Config{MinVersion: tls.VersionTLS12}, "over TLS without trust"))
		}
		d.compare("TLS", all)
	})
	d.step("no TLS again", func() { d.restAPI(nil, nil) })
}

// restAPI changes the REST APIs of the leader and a replica.
func (d *diffRig) restAPI(keys map[string]any, how *tls.Config) {
	d.t.Helper()
	refs := []string{local, "main/n2"}
	for _, ref := range refs {
		d.do(d.node(ref).Reconfigure(func(c map[string]any) {
			api := c["restapi"].(map[string]any)
			for _, k := range []string{"certfile", "keyfile", "cafile", "verify_client"} {
				delete(api, k)
			}
			maps.Copy(api, keys)
		}))
	}
	d.until("Patroni to listen anew", func() bool {
		for _, ref := range refs {
			q := question{method: http.MethodGet, target: "/health", tls: how}
			if q.put(d.node(ref).RESTAddr(), "/health").status != http.StatusOK {
				return false
			}
		}
		return true
	})
}
