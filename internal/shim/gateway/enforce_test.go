package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// enforced is a world whose policy has rules, and whose internet has every name
// under example at one address of each protocol.
func enforced(t testing.TB, rules ...string) *world {
	t.Helper()
	resolver := startResolver(t, func(w dns.ResponseWriter, req *dns.Msg) {
		resp := new(dns.Msg).SetReply(req)
		q := req.Question[0]
		ip := publicIP
		if strings.HasPrefix(q.Name, "inward.") {
			ip = privIP
		}
		switch q.Qtype {
		case dns.TypeA:
			resp.Answer = append(resp.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(ip)})
		case dns.TypeAAAA:
			resp.Answer = append(resp.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET}, AAAA: net.ParseIP(publicIP6)})
		}
		_ = w.WriteMsg(resp)
	})
	return newWorld(t, "veth", func(g *Gateway) {
		g.Policy = made(t, rules...)
		g.Resolvers = []netip.AddrPort{resolver}
	})
}

func made(t testing.TB, rules ...string) policy.Policy {
	t.Helper()
	var all []policy.Rule
	for _, text := range rules {
		rest, deny := strings.CutPrefix(text, "deny ")
		r, err := policy.ParseRule(rest)
		if err != nil {
			t.Fatal(err)
		}
		r.Deny = deny
		all = append(all, r)
	}
	return policy.New(all...)
}

// lookup looks a name up from inside, and returns the answer's code.
func (w *world) lookup(t testing.TB, name string) int {
	t.Helper()
	return w.ask(t, "udp", question(dns.Fqdn(name), dns.TypeA)).Rcode
}

// refused waits for the next refusal, which must be by a rule.
func (w *world) refused(t *testing.T, what, rule, name string) {
	t.Helper()
	e := w.next(t)
	if e.Rule != rule || name != "" && e.Name != name || e.Hint == "" {
		t.Errorf("%s: got event %+v, want rule %q for %q", what, e, rule, name)
	}
	_, told, _ := strings.Cut(e.Hint, "cove policy allow ")
	if told, _, _ = strings.Cut(told, ";"); told != e.Opens {
		t.Errorf("%s: %q opens it, and the hint is %q", what, e.Opens, e.Hint)
	}
}

// An address is reached under a name that may be and that was looked up.
func TestNamesOnly(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	private := listenIn(t, internetNS, fmt.Sprintf("%s:%d", privIP, tcpPort(public.Addr())))
	serveTCP(t, private, func(*net.TCPConn) { t.Error("a connection got inward") })
	w := enforced(t, "allowed.example", "inward.example", fmt.Sprintf("ports.example:%d", tcpPort(public.Addr())+1), "deny denied.example")
	addr := public.Addr().String()
	if _, err := w.dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("an address that was never looked up: %v", err)
	}
	w.refused(t, "never looked up", "no rule", "")
	for name, rule := range map[string]string{"denied.example": "deny denied.example", "other.example": "no rule", "x.allowed.example": "no rule"} {
		if code := w.lookup(t, name); code != dns.RcodeRefused {
			t.Errorf("look up %s: %s", name, dns.RcodeToString[code])
		}
		w.refused(t, name, rule, name)
	}
	w.lookup(t, "ports.example")
	if _, err := w.dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another port of a name: %v", err)
	}
	w.refused(t, "another port", "no rule", "ports.example")
	w.lookup(t, "allowed.example")
	c, err := w.dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := roundTrip(c, append([]byte(otherProtocol), randomBytes(1<<20)...)); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	w.lookup(t, "inward.example")
	if _, err := w.dial("tcp", private.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a name that leads inward: %v", err)
	}
	w.refused(t, "inward", "private", "inward.example")
}

// tlsServer answers every TLS connection by the name that it was for.
func tlsServer(t testing.TB) net.Listener {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, l, func(c *net.TCPConn) {
		server := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		if server.Handshake() == nil {
			_, _ = io.WriteString(server, "for "+server.ConnectionState().ServerName)
			_ = server.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}
	})
	return l
}

// pieces writes in pieces of n bytes, with pauses.
type pieces struct {
	net.Conn
	n     int
	pause time.Duration
}

func (p pieces) Write(b []byte) (int, error) {
	for i := 0; i < len(b); i += p.n {
		if i > 0 {
			time.Sleep(p.pause) // slowness is tested
		}
		if _, err := p.Conn.Write(b[i:min(i+p.n, len(b))]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// The name in a TLS handshake must be one that the address was looked up by.
func TestServerName(t *testing.T) {
	l := tlsServer(t)
	w := enforced(t, "allowed.example", "also.example", "deny denied.example")
	w.lookup(t, "allowed.example")
	try := func(name string, wrap func(net.Conn) net.Conn, config *tls.Config) (string, error) {
		c, err := w.dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lastResort))
		config.InsecureSkipVerify, config.ServerName = true, name
		got, err := io.ReadAll(tls.Client(wrap(c), config))
		return string(got), err
	}
	plain := func(c net.Conn) net.Conn { return c }
	for what, wrap := range map[string]func(net.Conn) net.Conn{
		"at once":         plain,
		"byte by byte":    func(c net.Conn) net.Conn { return pieces{c, 1, 0} },
		"in halves, slow": func(c net.Conn) net.Conn { return pieces{c, 700, 200 * time.Millisecond} },
	} {
		if got, err := try("allowed.example", wrap, new(tls.Config)); got != "for allowed.example" || err != nil {
			t.Errorf("%s: got %q, %v", what, got, err)
		}
	}
	for _, test := range []struct{ name, rule string }{
		{"denied.example", "deny denied.example"}, {"other.example", "no rule"}, {"also.example", "another name"}, {"", "no name"},
	} {
		if got, err := try(test.name, plain, new(tls.Config)); err == nil {
			t.Errorf("SNI %q: got %q", test.name, got)
		}
		w.refused(t, "SNI "+test.name, test.rule, test.name)
	}
	// A handshake that hides its name, with a harmless one outside.
	c, err := w.dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(withExtension(t, helloFor(t, "allowed.example"), echExtension))
	_ = c.SetReadDeadline(time.Now().Add(lastResort))
	if got, err := io.ReadAll(c); err == nil {
		t.Errorf("ECH: got %q", got)
	}
	w.refused(t, "ECH", "hidden name", "allowed.example")
}

// helloFor is the record that a client begins with.
func helloFor(t testing.TB, name string) []byte {
	var buf bytes.Buffer
	_ = tls.Client(recorder{w: &buf}, &tls.Config{ServerName: name}).Handshake() // which nobody answers
	if buf.Len() < 50 {
		t.Fatal("no hello")
	}
	return buf.Bytes()
}

type recorder struct {
	helloConn
	w io.Writer
}

func (r recorder) Write(p []byte) (int, error) { return r.w.Write(p) }
func (recorder) Read([]byte) (int, error)      { return 0, io.EOF }

// withExtension adds an empty extension to a hello.
func withExtension(t testing.TB, record []byte, id uint16) []byte {
	t.Helper()
	add := func(at, size int) { // to a length of that many bytes
		n := 0
		for _, b := range record[at : at+size] {
			n = n<<8 | int(b)
		}
		n += 4
		for i := size - 1; i >= 0; i-- {
			record[at+i], n = byte(n), n>>8
		}
	}
	record = append(bytes.Clone(record), byte(id>>8), byte(id), 0, 0)
	at := 5 + 4 + 2 + 32 // record, message, version, random
	at += 1 + int(record[at])
	at += 2 + int(record[at])<<8 + int(record[at+1])
	at += 1 + int(record[at])
	add(3, 2)
	add(6, 3)
	add(at, 2)
	return record
}

// Each request of plain HTTP must be for a name that the address was looked up by.
func TestHost(t *testing.T) {
	l := listenIn(t, internetNS, publicIP+":0")
	seen := make(chan string, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Host
		if r.Header.Get("Upgrade") != "" {
			c, rest, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
			_, _ = io.Copy(c, rest)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		rw.Header().Set("X-Seen", r.Header.Get("X-Forwarded-For")+" "+r.UserAgent())
		_, _ = fmt.Fprintf(rw, "%s %s %d", r.Method, r.URL, n)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	w := enforced(t, "allowed.example", "also.example", "deny denied.example")
	w.lookup(t, "allowed.example")
	port := tcpPort(l.Addr())
	talk := func(text string) (*bufio.Reader, net.Conn) {
		c, err := w.dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(lastResort))
		_, _ = io.WriteString(c, text)
		return bufio.NewReader(c), c
	}
	answer := func(r *bufio.Reader) (int, string) {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, err.Error()
		}
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	r, c := talk("GET /a%2Fb?c HTTP/1.1\r\nHost: Allowed.Example\r\nX-Forwarded-For: me\r\n\r\n")
	if code, body := answer(r); code != 200 || body != "GET /a%2Fb?c 0" {
		t.Errorf("got %d %q", code, body)
	}
	if host := <-seen; host != "Allowed.Example" {
		t.Errorf("the server saw %q", host)
	}
	body := randomBytes(3 << 20)
	_, _ = fmt.Fprintf(c, "POST /up HTTP/1.1\r\nHost: allowed.example:%d\r\nContent-Length: %d\r\n\r\n%s", port, len(body), body)
	if code, got := answer(r); code != 200 || got != fmt.Sprintf("POST /up %d", len(body)) {
		t.Errorf("got %d %q", code, got)
	}
	<-seen
	// The same connection, another name.
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n")
	if code, got := answer(r); code != 403 || !strings.Contains(got, "cove policy allow") {
		t.Errorf("another name on the same connection: %d %q", code, got)
	}
	w.refused(t, "another name", "deny denied.example", "denied.example")
	for text, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n":                                             403,
		"\r\n\r\nGET / HTTP/1.1\r\nHost: denied.example\r\n\r\n":                                     400,
		"get / HTTP/1.1\r\nHost: denied.example\r\n\r\n":                                             403,
		"GET / HTTP/1.1\r\nHost: also.example\r\n\r\n":                                               403,
		"GET http://denied.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                       403,
		"GET http:http://denied.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                  403,
		"GET http:x HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                                       403,
		"GET / HTTP/1.1\r\nHost: a@allowed.example\r\n\r\n":                                          400,
		"GET / HTTP/1.1\r\nHost: " + publicIP + "\r\n\r\n":                                           403,
		"GET / HTTP/1.0\r\n\r\n":                                                                     403,
		"CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                      403,
		"GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: denied.example\r\n\r\n":                    400,
		"GET / HTTP/1.1\r\n\r\n":                                                                     400,
		"GET /\r\n":                                                                                  400,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                           0,
		"POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": 400,
	} {
		r, _ := talk(text)
		code, got := answer(r)
		if code != want && (want != 0 || code < 400) {
			t.Errorf("%q: got %d %q, want %d", text, code, got, want)
		}
	}
	select {
	case host := <-seen:
		t.Errorf("a request for %s got through", host)
	default:
	}
	// A connection that changes protocol.
	r, c = talk("GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	_, _ = io.WriteString(c, "ping")
	if got := make([]byte, 4); true {
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "ping" {
			t.Errorf("after the upgrade: %q, %v", got, err)
		}
	}
}

// A tightened policy ends the connections that it does not allow any more, and
// only these.
func TestSetPolicy(t *testing.T) {
	endless := func(c *net.TCPConn) {
		for block := make([]byte, 64<<10); ; {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	}
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, endless)
	other := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, other, echo)
	ports := func(l net.Listener) string { return fmt.Sprintf("a.example:%d", tcpPort(l.Addr())) }
	w := enforced(t, ports(public), ports(other))
	w.lookup(t, "a.example")
	closed, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	kept, err := w.dial("tcp", other.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if _, err := io.ReadFull(closed, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	w.SetPolicy(made(t, ports(other)))
	_ = closed.SetReadDeadline(time.Now().Add(lastResort))
	if _, err := io.Copy(io.Discard, closed); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection that is not allowed any more: %v", err)
	}
	w.refused(t, "ended", "no rule", "a.example")
	if err := roundTrip(kept, []byte(otherProtocol)); err != nil {
		t.Errorf("the other one: %v", err)
	}
	if _, err := w.dial("tcp", public.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new one: %v", err)
	}
}

// UDP passes by a rule for it, each flow by itself.
func TestUDP(t *testing.T) {
	var pc net.PacketConn
	err := InNetNS(internetNS, func() (err error) {
		pc, err = net.ListenPacket("udp4", publicIP+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	port := pc.LocalAddr().(*net.UDPAddr).Port
	w := enforced(t, fmt.Sprintf("time.example:%d/udp", port), "web.example")
	send := func() error {
		c, err := w.dial("udp", pc.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lastResort))
		for _, text := range []string{"one", "two"} {
			if _, err := io.WriteString(c, text); err != nil {
				return err
			}
			buf := make([]byte, 10)
			if n, err := c.Read(buf); err != nil || string(buf[:n]) != text {
				return fmt.Errorf("got %q, %w", buf[:n], err)
			}
		}
		return nil
	}
	w.lookup(t, "web.example")
	if err := send(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without its name: %v", err)
	}
	w.lookup(t, "time.example")
	if err := send(); err != nil {
		t.Error(err)
	}
}

// Many names of one domain are a tunnel; those of others are still answered.
func TestLookupFlood(t *testing.T) {
	w := enforced(t, "*.example", "*.b.example")
	refused := 0
	for i := range lookupBurst + 100 {
		if w.lookup(t, fmt.Sprintf("x%d.tunnel.example", i)) == dns.RcodeRefused {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("%d of %d were refused", refused, lookupBurst+100)
	}
	w.refused(t, "a flood", "too many lookups", "")
	if code := w.lookup(t, "a.other.example"); code != dns.RcodeSuccess {
		t.Errorf("another domain: %s", dns.RcodeToString[code])
	}
}

// An echo request to an address that may be reached is answered; to others it is
// not.
func TestPingByPolicy(t *testing.T) {
	w := enforced(t, "allowed.example", "10.1.2.0/24")
	var pc net.PacketConn
	err := InNetNS(w.ns, func() (err error) {
		pc, err = net.ListenPacket("ip4:icmp", guestIP)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	ping := func(to string, wait time.Duration) bool {
		m := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize+4))
		m.SetType(header.ICMPv4Echo)
		m.SetIdent(7)
		m.SetChecksum(header.ICMPv4Checksum(m, 0))
		if _, err := pc.WriteTo(m, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			t.Fatal(err)
		}
		_ = pc.SetReadDeadline(time.Now().Add(wait))
		for buf := make([]byte, 1500); ; {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return false
			}
			if from.String() == to && n >= header.ICMPv4MinimumSize && header.ICMPv4(buf[:n]).Type() == header.ICMPv4EchoReply {
				return true
			}
		}
	}
	if ping(publicIP, 300*time.Millisecond) {
		t.Error("an address that was not looked up answers")
	}
	w.lookup(t, "allowed.example")
	for to, want := range map[string]bool{publicIP: true, gwIP: true, privIP: true, metaIP: false, hostIP: false, "10.9.9.9": false} {
		wait := lastResort
		if !want {
			wait = 300 * time.Millisecond
		}
		if got := ping(to, wait); got != want {
			t.Errorf("%s answers: %v, want %v", to, got, want)
		}
	}
}

// Limits slow bytes down and refuse connections beyond them; without limits again,
// neither.
func TestRateLimits(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	w := newWorld(t, "veth", nil)
	w.SetLimits(policy.Limits{BytesPerSecond: 2 << 20, ConnsPerSecond: 1})
	c, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begin := time.Now()
	if err := roundTrip(c, randomBytes(4<<20)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 900*time.Millisecond { // a second's worth may come at once
		t.Errorf("4 MiB at 2 MiB/s took %v", took)
	}
	refused := 0
	for range 20 {
		c, err := w.dial("tcp", public.Addr().String())
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		} else {
			_ = c.Close()
		}
	}
	if refused == 0 {
		t.Error("20 connections at one a second, and none was refused")
	}
	w.refused(t, "beyond the rate", "connection rate", "")
	w.SetLimits(policy.Limits{})
	for range 20 {
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}

// Before a refusal is answered, the sandbox is asked which process it belongs to.
// That takes a bounded time, and is not done for each refusal of a flood.
func TestOwnerAsked(t *testing.T) {
	public, begun := listenIn(t, internetNS, publicIP+":0"), time.Now()
	var asked atomic.Int32
	var slow atomic.Bool
	var froms sync.Map
	w := newWorld(t, "veth", func(g *Gateway) {
		g.Policy = made(t, "allowed.example")
		g.Owner = func(ctx context.Context, proto policy.Proto, from netip.AddrPort) (Process, error) {
			asked.Add(1)
			froms.Store(from, proto)
			if slow.Load() {
				<-ctx.Done()
				return Process{Name: "late"}, ctx.Err()
			}
			return Process{Name: "curl", PID: 7}, nil
		}
	})
	refuse := func(addr string) Event {
		t.Helper()
		if _, err := w.dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%s: got %v, want connection refused", addr, err)
		}
		return w.next(t)
	}
	who := Process{Name: "curl", PID: 7}
	if e := refuse(public.Addr().String()); e.Process != who {
		t.Errorf("got %+v, want %+v", e.Process, who)
	}
	if e := refuse(bracket(publicIP6, 80)); e.Process != who {
		t.Errorf("by IPv6: got %+v, want %+v", e.Process, who)
	}
	w.lookup(t, "denied.example")
	if e := w.next(t); e.Process != who || e.Proto != "dns" {
		t.Errorf("a lookup: got %+v, want %+v", e, who)
	}
	c, err := w.dial("udp", publicIP+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if e := w.next(t); e.Process != who || e.Proto != "udp" {
		t.Errorf("a datagram: got %+v, want %+v", e, who)
	}
	from := netip.MustParseAddrPort(c.LocalAddr().String())
	if proto, ok := froms.Load(from); !ok || proto != policy.UDP {
		t.Errorf("the sandbox was not asked for %v", from)
	}

	slow.Store(true)
	began := time.Now()
	if e := refuse(public.Addr().String()); e.Process != (Process{}) {
		t.Errorf("of one that does not answer: got %+v", e.Process)
	}
	if d := time.Since(began); d < ownerWait {
		t.Errorf("one that does not answer holds a refusal up for %v", d)
	}
	slow.Store(false)
	for range 3 * ownerBurst {
		refuse(public.Addr().String())
	}
	if n, took := asked.Load(), time.Since(begun); float64(n) > ownerBurst+1+ownerRate*took.Seconds() {
		t.Errorf("the sandbox was asked %d times in %v", n, took)
	}
}
