package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// udpIdle is how long a UDP flow lasts without a datagram.
const udpIdle = time.Minute

// maxDatagramFlows bounds the flows of UDP that are open at once: each has 128 KiB of
// buffers.
const maxDatagramFlows = 256

// forwardUDP is called by the stack for a datagram of no known flow to anywhere but the
// DNS server. If it does not handle a datagram, the stack answers with ICMP, port
// unreachable.
func (g *Gateway) forwardUDP(r *udp.ForwarderRequest) (handled bool) {
	id := r.ID()
	to := netip.AddrPortFrom(hostAddr(id.LocalAddress), id.LocalPort)
	from := source{policy.UDP, netip.AddrPortFrom(hostAddr(id.RemoteAddress), id.RemotePort)}
	d := g.decide(to, policy.UDP)
	if g.isOwn(to.Addr()) || !d.Allow {
		g.refuseDatagram(from, to, d)
		return false
	}
	select {
	case g.datagrams <- struct{}{}:
	default:
		g.refuseDatagram(from, to, tooMany)
		return false
	}
	window, ok := g.outward.take()
	if !ok {
		<-g.datagrams
		g.refuseDatagram(from, to, tooMany)
		return false
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil || !g.enter() {
		<-g.datagrams
		g.outward.give(window)
		return terr == nil
	}
	guest := gonet.NewUDPConn(&wq, ep)
	go func() {
		defer g.wg.Done()
		defer func() { <-g.datagrams }()
		defer g.outward.give(window)
		defer guest.Close()
		g.relayUDP(guest, from, to, d)
	}()
	return true
}

// relayUDP passes datagrams between a flow of the sandbox's and a socket of its
// own, until both are silent.
func (g *Gateway) relayUDP(guest *gonet.UDPConn, from source, to netip.AddrPort, d policy.Decision) {
	host, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		g.Logger.Debug("send for the sandbox", "to", to, "error", err)
		return
	}
	defer host.Close()
	if !opensOwn(*g.policy.Load(), to, policy.UDP) && stayedHere(to, host.LocalAddr().(*net.UDPAddr).AddrPort(), policy.UDP) {
		g.refuse(from, to, policy.Policy{Own: []netip.Prefix{netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}}.Reach(to, policy.UDP, nil))
		return
	}
	end := func() {
		_ = host.Close()
		_ = guest.Close()
	}
	stop := context.AfterFunc(g.ctx, end)
	defer stop()
	o := g.opened(from, to, end)
	defer o.close()
	g.allowed(to, policy.UDP, d)
	back := make(chan struct{})
	go func() {
		defer close(back)
		passDatagrams(guest, host, host, nil)
		end()
	}()
	passDatagrams(host, guest, host, func(b []byte) bool {
		if len(d.Names) > 0 && namesHost(b) {
			literal := policy.Literal(to, policy.UDP)
			g.refuseDatagram(from, to, policy.Decision{Rule: "hidden name", Hint: "QUIC and DTLS hide the name that they connect to; use TCP, or allow the address: cove policy allow " + literal, Opens: literal})
			return false
		}
		return true
	})
	end()
	<-back
}

// namesHost reports whether a datagram begins QUIC (RFC 8999) or DTLS: in both a client
// tells the server a name.
func namesHost(b []byte) bool {
	const longHeader = 0xc0
	switch {
	case len(b) < 5:
		return false
	case b[0] >= 20 && b[0] < 64 && b[1] == 0xfe: // a record of DTLS; others may follow it
		return true
	case hasHello(b): // servers pass over other bytes
		return true
	case b[0]&0x80 == 0:
		return false
	}
	switch version := binary.BigEndian.Uint32(b[1:]); {
	case version == 1 || version == 0x6b3343cf || version>>8 == 0xff0000: // QUIC 1, 2, and drafts
		return true
	default:
		return b[0]&longHeader == longHeader && (b[1] == 'Q' || b[1] == 'T') && b[2] == '0' // Google's
	}
}

// hasHello reports whether a record of DTLS 1.0 to 1.3 with a ClientHello is anywhere in
// a datagram: not encrypted, so of epoch 0.
func hasHello(b []byte) bool {
	const header = 13
	for len(b) > header {
		i := bytes.IndexByte(b[:len(b)-header], 22)
		if i < 0 {
			return false
		}
		if h := b[i:]; h[1] == 0xfe && h[2] >= 0xfc && h[3] == 0 && h[4] == 0 && h[header] == 1 {
			return true
		}
		b = b[i+1:]
	}
	return false
}

// passDatagrams copies datagrams until an error. If may is not nil, it leaves out those
// that may refuses. A datagram in either direction is a sign of life: it sets the host's
// deadline anew.
func passDatagrams(dst, src net.Conn, host *net.UDPConn, may func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		_ = host.SetReadDeadline(time.Now().Add(udpIdle))
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		if may != nil && !may(buf[:n]) {
			continue
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}
