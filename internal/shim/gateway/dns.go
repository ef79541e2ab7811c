package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

const (
	dnsPort = 53

	maxLookups    = 128             // UDP questions being answered at once; more are dropped, and asked again
	lookupTimeout = 2 * time.Second // of one server
	dnsConnIdle   = 10 * time.Second
	maxDNSConns   = 64   // of TCP, open at once
	maxQuestion   = 4096 // bytes; nothing that is asked is longer
	maxUDPAnswer  = 1232 // passes everywhere; longer ones are truncated, and asked for by TCP

	connectTTL = 60
)

// startDNS answers questions at the gateway's address, by UDP; those by TCP come
// through the forwarder.
func (g *Gateway) startDNS() error {
	at := tcpip.FullAddress{NIC: nicID, Addr: stackAddr(g.Addr.Addr()), Port: dnsPort}
	pc, err := gonet.DialUDP(g.stack, &at, nil, ipv4.ProtocolNumber)
	if err != nil {
		return fmt.Errorf("listen for DNS: %w", err)
	}
	stop := context.AfterFunc(g.ctx, func() { _ = pc.Close() })
	busy := make(chan struct{}, maxLookups)
	g.wg.Go(func() {
		defer stop()
		defer pc.Close()
		for {
			buf := make([]byte, 4096)
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				if g.ctx.Err() != nil {
					return
				}
				continue // an ICMP error about an earlier answer
			}
			select {
			case busy <- struct{}{}:
			default:
				continue
			}
			g.wg.Go(func() {
				defer func() { <-busy }()
				if answer := g.answer(source{policy.UDP, from.(*net.UDPAddr).AddrPort()}, buf[:n]); answer != nil {
					_, _ = pc.WriteTo(answer, from)
				}
			})
		}
	})
	return nil
}

// serveDNSConn answers the questions of one TCP connection, one after the other.
func (g *Gateway) serveDNSConn(c *Conn, from source) {
	defer c.Close()
	stop := context.AfterFunc(g.ctx, func() { _ = c.Close() })
	defer stop()
	dc := &dns.Conn{Conn: c}
	for {
		_ = c.SetDeadline(time.Now().Add(dnsConnIdle))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuestion {
			return
		}
		question := make([]byte, n)
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		answer := g.answer(from, question)
		if answer == nil {
			return
		}
		if _, err := dc.Write(answer); err != nil {
			return
		}
	}
}

// answer returns the packed answer to a packed question, or nil if it deserves
// none.
func (g *Gateway) answer(from source, question []byte) []byte {
	udp := from.proto == policy.UDP
	req := new(dns.Msg)
	if err := req.Unpack(question); err != nil || req.Response || len(req.Question) != 1 {
		return nil
	}
	size := dns.MaxMsgSize
	if udp {
		size = dns.MinMsgSize
	}
	resp := g.resolve(from, req)
	if opt := req.IsEdns0(); opt != nil {
		if udp {
			size = min(max(int(opt.UDPSize()), dns.MinMsgSize), maxUDPAnswer)
		}
		resp.SetEdns0(maxUDPAnswer, false)
	}
	resp.Truncate(size)
	out, err := resp.Pack()
	if err != nil {
		g.Logger.Debug("pack a DNS answer", "error", err)
		return nil
	}
	return out
}

// resolve answers one question.
func (g *Gateway) resolve(from source, req *dns.Msg) *dns.Msg {
	resp := new(dns.Msg).SetReply(req)
	resp.RecursionAvailable = true
	resp.Compress = true
	q := req.Question[0]
	if req.Opcode != dns.OpcodeQuery || q.Qclass != dns.ClassINET {
		resp.Rcode = dns.RcodeNotImplemented
		return resp
	}
	name, err := policy.CanonicalName(q.Name)
	if err == nil && (name == connect.Zone || strings.HasSuffix(name, "."+connect.Zone)) {
		g.resolveConnector(resp, name)
		return resp
	}
	if d := g.policy.Load().Lookup(q.Name); !d.Allow {
		resp.Rcode = dns.RcodeRefused
		g.refuseName(from, strings.TrimSuffix(q.Name, "."), d)
		return resp
	}
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeHTTPS, dns.TypeSVCB:
	default:
		return resp // the name may exist, but has no such records here
	}
	found, rcode := g.find(from, name, q.Qtype)
	if resp.Rcode = rcode; rcode == dns.RcodeRefused {
		return resp
	}
	dead := g.isDead(from, name, q.Qtype, found)
	for _, rr := range found.records() {
		if dead && rr.Header().Rrtype == q.Qtype {
			continue
		}
		ttl := time.Duration(rr.Header().Ttl) * time.Second
		switch rr := rr.(type) {
		case *dns.A:
			g.pin(rr.A, name, ttl)
		case *dns.AAAA:
			g.pin(rr.AAAA, name, ttl)
		}
		resp.Answer = append(resp.Answer, rr)
	}
	restoreCase(resp, name, q.Name)
	return resp
}

// find answers from the cache, or asks a resolver. A code other than the answer's
// comes with no records.
func (g *Gateway) find(from source, name string, qtype uint16) (answered, int) {
	found, ok := g.cache.get(name, qtype)
	if ok {
		return found, found.rcode
	}
	if !g.cache.mayAsk(name) {
		g.refuseName(from, name, policy.Decision{
			Rule: "too many lookups",
			Hint: "so many different names under one domain look like a tunnel; ask for fewer",
		})
		return answered{}, dns.RcodeRefused
	}
	up, err := g.exchange(name, qtype)
	if err != nil {
		g.Logger.Debug("look up for the sandbox", "name", name, "error", err)
		return answered{}, dns.RcodeServerFailure
	}
	found = g.cache.put(name, qtype, up)
	return found, found.rcode
}

// isDead reports whether the host has no route to an answer's addresses, but has a
// route to other addresses of the name. A program that is given both would try
// addresses that can't work, and not every program then tries the next.
func (g *Gateway) isDead(from source, name string, qtype uint16, found answered) bool {
	if qtype != dns.TypeA && qtype != dns.TypeAAAA || !found.has(qtype) {
		return false
	}
	four, six := g.host.routes()
	switch {
	case qtype == dns.TypeA && !four && six:
		qtype = dns.TypeAAAA
	case qtype == dns.TypeAAAA && !six && four:
		qtype = dns.TypeA
	default:
		return false
	}
	other, _ := g.find(from, name, qtype)
	return other.has(qtype)
}

func (g *Gateway) pin(ip []byte, name string, ttl time.Duration) {
	if a, ok := netip.AddrFromSlice(ip); ok {
		g.pins.put(policy.Canonical(a), name, ttl)
	}
}

// restoreCase writes the name as the question had it, for those who check.
func restoreCase(resp *dns.Msg, canonical, asked string) {
	for _, rr := range resp.Answer {
		if strings.EqualFold(strings.TrimSuffix(rr.Header().Name, "."), canonical) {
			rr.Header().Name = asked
		}
	}
}

// resolveConnector answers for NAME.connect.internal: any one label leads to the
// gateway, which says so if there is no connector of that name.
func (g *Gateway) resolveConnector(resp *dns.Msg, name string) {
	q := resp.Question[0]
	label, _ := strings.CutSuffix(name, "."+connect.Zone)
	if label == name { // the zone itself
		return
	}
	if strings.Contains(label, ".") {
		resp.Rcode = dns.RcodeNameError
		return
	}
	if q.Qtype == dns.TypeA {
		resp.Answer = append(resp.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: connectTTL},
			A:   g.Addr.Addr().AsSlice(),
		})
	}
}

// exchange asks the host's resolvers, in order, until one answers. If one was late, they are
// asked once more: a packet may be lost, and a slow resolver may know the answer by then.
func (g *Gateway) exchange(name string, qtype uint16) (*dns.Msg, error) {
	servers, err := g.host.dnsServers()
	if err != nil {
		return nil, err
	}
	servers = servers[:min(len(servers), 3)]
	resp, late, err := askEach(g.ctx, servers, name, qtype)
	if late && g.ctx.Err() == nil {
		resp, _, err = askEach(g.ctx, servers, name, qtype)
	}
	return resp, err
}

// askEach asks resolvers, in order, until one answers. late reports whether none did, and one
// not within lookupTimeout.
func askEach(ctx context.Context, servers []netip.AddrPort, name string, qtype uint16) (resp *dns.Msg, late bool, err error) {
	var errs []error
	for _, server := range servers {
		m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
		m.SetEdns0(maxUDPAnswer, false)
		resp, err := ask(ctx, "udp", server, m)
		if err == nil && resp.Truncated {
			resp, err = ask(ctx, "tcp", server, m)
		}
		switch {
		case err != nil:
			e, ok := errors.AsType[net.Error](err)
			late = late || ok && e.Timeout()
			errs = append(errs, fmt.Errorf("ask %v: %w", server, err))
		case resp.Rcode == dns.RcodeServerFailure || resp.Rcode == dns.RcodeRefused || resp.Rcode == dns.RcodeNotImplemented:
			errs = append(errs, fmt.Errorf("ask %v: %s", server, dns.RcodeToString[resp.Rcode]))
		default:
			return resp, false, nil
		}
	}
	return nil, late, errors.Join(errs...)
}

func ask(ctx context.Context, network string, server netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: lookupTimeout, UDPSize: maxUDPAnswer}
	resp, _, err := c.ExchangeContext(ctx, m, server.String())
	if err != nil {
		return nil, err
	}
	if !resp.Response || len(resp.Question) != 1 || !strings.EqualFold(resp.Question[0].Name, m.Question[0].Name) ||
		resp.Question[0].Qtype != m.Question[0].Qtype {
		return nil, errors.New("the answer is to another question")
	}
	return resp, nil
}
