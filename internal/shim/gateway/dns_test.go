package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// zone is what the test's resolver on the internet knows.
func zone(t testing.TB, lookups *atomic.Int32) dns.HandlerFunc {
	rr := func(s string) dns.RR {
		r, err := dns.NewRR(s)
		if err != nil {
			t.Error(err)
		}
		return r
	}
	return func(w dns.ResponseWriter, req *dns.Msg) {
		n := lookups.Add(1)
		resp := new(dns.Msg).SetReply(req)
		q := req.Question[0]
		add := func(ss ...string) {
			for _, s := range ss {
				resp.Answer = append(resp.Answer, rr(s))
			}
		}
		is := func(name string, typ uint16) bool { return q.Name == name && q.Qtype == typ }
		switch {
		case is("public.example.", dns.TypeA):
			add("public.example. 5 IN A " + publicIP)
		case is("public.example.", dns.TypeAAAA):
			add("public.example. 5 IN AAAA 2620:4f:8000::2")
		case is("public.example.", dns.TypeHTTPS):
			add(`public.example. 5 IN HTTPS 1 . alpn="h2" ipv4hint="10.0.0.1" ech="AEn+DQBFKwAgACABWIHUGj4u+PIggYXcR5JF0gYk3dCRioBW8uJq9H4mKAAIAAEAAQABAANAEnB1YmxpYy50bHMtZWNoLmRldgAA"`)
		case is("www.example.", dns.TypeA):
			add("www.example. 5 IN CNAME public.example.", "public.example. 5 IN A "+publicIP, "public.example. 5 IN TXT hello")
		case is("inward.example.", dns.TypeA):
			add("inward.example. 0 IN CNAME vault.corp.", "vault.corp. 0 IN A "+privIP)
		case is("rebind.example.", dns.TypeA):
			if n%2 == 1 {
				add("rebind.example. 0 IN A " + publicIP)
			} else {
				add("rebind.example. 0 IN A " + privIP)
			}
		case is("big.example.", dns.TypeA):
			for i := range 200 {
				add(fmt.Sprintf("big.example. 5 IN A 192.175.48.%d", i))
			}
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				resp.Truncate(dns.MinMsgSize)
			}
		case is("broken.example.", dns.TypeA):
			resp.Rcode = dns.RcodeServerFailure
		default:
			resp.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(resp)
	}
}

// ask sends a question from inside the guest to the gateway. It asks again if that took as long
// as the gateway waits for a resolver, which may have been too slow. A refusal asks none.
func (w *world) ask(t testing.TB, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	for end := time.Now().Add(lastResort); ; {
		began := time.Now()
		resp, err := w.askOnce(network, m)
		refused := err == nil && resp.Rcode == dns.RcodeRefused
		if refused || time.Since(began) < lookupTimeout || time.Now().After(end) {
			if err != nil {
				t.Fatalf("%s %v: %v", network, m.Question, err)
			}
			return resp
		}
	}
}

func (w *world) askOnce(network string, m *dns.Msg) (*dns.Msg, error) {
	c, err := w.dial(network, gwIP+":53")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lastResort))
	dc := &dns.Conn{Conn: c, UDPSize: 4096}
	if err := dc.WriteMsg(m); err != nil {
		return nil, err
	}
	return dc.ReadMsg()
}

func question(name string, typ uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, typ) }

// brief is the answer's records without their TTLs.
func brief(m *dns.Msg) []string {
	out := []string{}
	for _, rr := range m.Answer {
		f := strings.Fields(rr.String())
		out = append(out, strings.Join(slices.Delete(f, 1, 3), " "))
	}
	return out
}

func TestDNS(t *testing.T) {
	var lookups atomic.Int32
	resolver := startResolver(t, zone(t, &lookups))
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, func(g *Gateway) { g.Resolvers = []netip.AddrPort{resolver} })
		for _, network := range []string{"udp", "tcp"} {
			for _, test := range []struct {
				name  string
				typ   uint16
				rcode int
				want  []string
				event string // name of the refusal expected
				asks  bool   // the resolver
			}{
				{"public.example.", dns.TypeA, dns.RcodeSuccess, []string{"public.example. A " + publicIP}, "", true},
				{"PUBLIC.Example.", dns.TypeA, dns.RcodeSuccess, []string{"PUBLIC.Example. A " + publicIP}, "", true},
				{"public.example.", dns.TypeAAAA, dns.RcodeSuccess, []string{"public.example. AAAA 2620:4f:8000::2"}, "", true},
				{"www.example.", dns.TypeA, dns.RcodeSuccess, []string{"www.example. CNAME public.example.", "public.example. A " + publicIP}, "", true},
				{"nobody.example.", dns.TypeA, dns.RcodeNameError, []string{}, "", true},
				{"broken.example.", dns.TypeA, dns.RcodeServerFailure, []string{}, "", true},
				{"public.example.", dns.TypeTXT, dns.RcodeSuccess, []string{}, "", false},
				{"public.example.", dns.TypeHTTPS, dns.RcodeSuccess, []string{`public.example. HTTPS 1 . alpn="h2"`}, "", true},
				{"api.connect.internal.", dns.TypeA, dns.RcodeSuccess, []string{"api.connect.internal. A " + gwIP}, "", false},
				{"Api.Connect.INTERNAL.", dns.TypeA, dns.RcodeSuccess, []string{"Api.Connect.INTERNAL. A " + gwIP}, "", false},
				{"api.connect.internal.", dns.TypeAAAA, dns.RcodeSuccess, []string{}, "", false},
				{"a.b.connect.internal.", dns.TypeA, dns.RcodeNameError, []string{}, "", false},
				{"connect.internal.", dns.TypeA, dns.RcodeSuccess, []string{}, "", false},
				{"metadata.google.internal.", dns.TypeA, dns.RcodeRefused, []string{}, "metadata.google.internal", false},
				{"printer.local.", dns.TypeA, dns.RcodeRefused, []string{}, "printer.local", false},
				{`a\000b.example.`, dns.TypeA, dns.RcodeRefused, []string{}, `a\000b.example`, false},
				{"2130706433.", dns.TypeA, dns.RcodeRefused, []string{}, "2130706433", false},
			} {
				w.forget()
				before := lookups.Load()
				resp := w.ask(t, network, question(test.name, test.typ))
				if resp.Rcode != test.rcode || !slices.Equal(brief(resp), test.want) {
					t.Errorf("%s %s %s: got %s %q, want %s %q", network, test.name, dns.TypeToString[test.typ],
						dns.RcodeToString[resp.Rcode], brief(resp), dns.RcodeToString[test.rcode], test.want)
				}
				if asked := lookups.Load() > before; asked != test.asks {
					t.Errorf("%s %s %s: resolver asked: got %v, want %v", network, test.name, dns.TypeToString[test.typ], asked, test.asks)
				}
				if test.event != "" {
					if e := w.next(t); e.Proto != "dns" || e.Name != test.event || e.Rule == "" || e.Hint == "" {
						t.Errorf("%s %s: got event %+v", network, test.name, e)
					}
				}
			}
		}
		select {
		case e := <-w.events:
			t.Errorf("unexpected refusal: %+v", e)
		default:
		}
	})
}

func TestDNSTruncation(t *testing.T) {
	resolver := startResolver(t, zone(t, new(atomic.Int32)))
	w := newWorld(t, "veth", func(g *Gateway) { g.Resolvers = []netip.AddrPort{resolver} })
	for _, test := range []struct {
		network string
		edns    uint16
		limit   int
		trunc   bool
	}{
		{"udp", 0, 512, true},
		{"udp", 1000, 1000, true},
		{"udp", 65000, maxUDPAnswer, true},
		{"tcp", 0, dns.MaxMsgSize, false},
	} {
		m := question("big.example.", dns.TypeA)
		if test.edns > 0 {
			m.SetEdns0(test.edns, false)
		}
		resp := w.ask(t, test.network, m)
		resp.Compress = true
		if resp.Truncated != test.trunc || resp.Len() > test.limit {
			t.Errorf("%s, EDNS %d: got %d bytes, truncated %v", test.network, test.edns, resp.Len(), resp.Truncated)
		}
		if !test.trunc && len(resp.Answer) != 200 {
			t.Errorf("%s: got %d records, want 200", test.network, len(resp.Answer))
		}
	}
}

// A name that leads inward may be looked up. Its address is refused when it is dialled, and
// the event has the name that the sandbox knows the address by.
func TestNameInward(t *testing.T) {
	resolver := startResolver(t, zone(t, new(atomic.Int32)))
	private := listenIn(t, internetNS, privIP+":0")
	public := listenIn(t, internetNS, fmt.Sprintf("%s:%d", publicIP, tcpPort(private.Addr())))
	var reached atomic.Int32
	serveTCP(t, private, func(*net.TCPConn) { reached.Add(1) })
	serveTCP(t, public, echo)
	w := newWorld(t, "veth", func(g *Gateway) { g.Resolvers = []netip.AddrPort{resolver} })
	for _, name := range []string{"inward.example.", "rebind.example.", "rebind.example."} {
		w.forget()
		resp := w.ask(t, "udp", question(name, dns.TypeA))
		a := resp.Answer[len(resp.Answer)-1].(*dns.A).A.String()
		c, err := w.dial("tcp", net.JoinHostPort(a, fmt.Sprint(tcpPort(private.Addr()))))
		if a == publicIP {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			_ = c.Close()
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s is %s: got %v, want connection refused", name, a, err)
		}
		if e := w.next(t); e.Name != strings.TrimSuffix(name, ".") || e.Rule != "private" {
			t.Errorf("%s: got event %+v", name, e)
		}
	}
	if got := reached.Load(); got != 0 {
		t.Errorf("%d connections got inward", got)
	}
}

// Without an answer from any resolver the guest gets SERVFAIL, not silence.
func TestNoResolver(t *testing.T) {
	gone := listenIn(t, internetNS, publicIP+":0")
	addr := netip.MustParseAddrPort(gone.Addr().String())
	_ = gone.Close()
	w := newWorld(t, "veth", func(g *Gateway) { g.Resolvers = []netip.AddrPort{addr} })
	if resp := w.ask(t, "udp", question("public.example.", dns.TypeA)); resp.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %s, want SERVFAIL", dns.RcodeToString[resp.Rcode])
	}
}

// TestLostQuestion: a resolver that gets nothing of a first question, or is slow to answer it, is
// asked again.
func TestLostQuestion(t *testing.T) {
	var lookups atomic.Int32
	knows := zone(t, &lookups)
	var asked atomic.Int32
	resolver := startResolver(t, dns.HandlerFunc(func(w dns.ResponseWriter, req *dns.Msg) {
		if asked.Add(1) > 1 {
			knows(w, req)
		}
	}))
	w := newWorld(t, "veth", func(g *Gateway) { g.Resolvers = []netip.AddrPort{resolver} })
	for end := time.Now().Add(lastResort); ; asked.Store(0) {
		began := time.Now()
		resp, err := w.askOnce("udp", question("public.example.", dns.TypeA))
		if err == nil && slices.Equal(brief(resp), []string{"public.example. A " + publicIP}) {
			return
		}
		if time.Since(began) < 2*lookupTimeout || time.Now().After(end) { // else this machine is slow, and both were lost
			t.Fatalf("got %v, %v", resp, err)
		}
	}
}

// Questions that are none must neither be answered nor end the server.
func TestDNSJunk(t *testing.T) {
	w := newWorld(t, "veth", nil)
	c, err := w.dial("udp", gwIP+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	two := question("api.connect.internal.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	response := question("api.connect.internal.", dns.TypeA)
	response.Response = true
	for _, m := range []*dns.Msg{two, response} {
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range [][]byte{{}, {1}, make([]byte, 12), []byte(strings.Repeat("\xc0\x0c", 700))} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if resp := w.ask(t, "udp", question("api.connect.internal.", dns.TypeA)); len(resp.Answer) != 1 {
		t.Errorf("got %v", resp)
	}
	chaos := question("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	if resp := w.ask(t, "udp", chaos); resp.Rcode != dns.RcodeNotImplemented {
		t.Errorf("class CHAOS: got %s", dns.RcodeToString[resp.Rcode])
	}
}

// forget empties the cache of answers.
func (w *world) forget() {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	clear(w.cache.answers)
}

// FuzzDNS: whatever a sandbox sends as a question, the answer is a response to it, of a size
// that the sandbox can take. Under a closed policy without rules, only the name of a
// connector has an address.
func FuzzDNS(f *testing.F) {
	for _, m := range []*dns.Msg{question("api.connect.internal.", dns.TypeA), question("public.example.", dns.TypeAAAA), question("version.bind.", dns.TypeTXT), question("x.connect.internal.", dns.TypeAAAA).SetEdns0(4096, true)} {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Add([]byte(strings.Repeat("\xc0\x0c", 700)), false)
	g := &Gateway{Addr: netip.MustParsePrefix(gwIP + "/24"), Policy: policy.Policy{Closed: true}, Logger: slog.New(slog.DiscardHandler)}
	g.policy.Store(&g.Policy)
	f.Fuzz(func(t *testing.T, b []byte, udp bool) {
		from := source{policy.TCP, netip.MustParseAddrPort(guestIP + ":5353")}
		if udp {
			from.proto = policy.UDP
		}
		out := g.answer(from, b)
		if out == nil {
			return
		}
		var req, resp dns.Msg
		if err := errors.Join(req.Unpack(b), resp.Unpack(out)); err != nil || !resp.Response || resp.Id != req.Id || len(req.Question) != 1 {
			t.Fatalf("%x is answered by %x: %v", b, out, err)
		}
		if udp && len(out) > maxUDPAnswer {
			t.Errorf("%x: an answer of %d bytes", b, len(out))
		}
		name, _ := policy.CanonicalName(req.Question[0].Name)
		if len(resp.Answer) > 0 && !strings.HasSuffix(name, ".connect.internal") {
			t.Errorf("%q has the answer %v", req.Question[0].Name, resp.Answer)
		}
	})
}
