package gateway

import (
	"context"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cove-dev/cove/internal/policy"
)

// udpIdle is how long a UDP flow lasts without a datagram.
const udpIdle = time.Minute

// forwardUDP is called by the stack for a datagram of no known flow to anywhere
// but the DNS server. What it does not handle the stack answers by ICMP, port
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
	window, ok := g.outward.take()
	if !ok {
		g.refuseDatagram(from, to, policy.Decision{Rule: "connection limit", Hint: "the sandbox has too many connections open at once; close some"})
		return false
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil || !g.enter() {
		g.outward.give(window)
		return terr == nil
	}
	guest := gonet.NewUDPConn(&wq, ep)
	go func() {
		defer g.wg.Done()
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
	if local := host.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); local == to.Addr().Unmap() && !byRule(d) {
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
		passDatagrams(guest, host, host)
		end()
	}()
	passDatagrams(host, guest, host)
	end()
	<-back
}

// passDatagrams copies until an error. A datagram in either direction is a sign of
// life, which is kept as the host's deadline.
func passDatagrams(dst, src net.Conn, host *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		_ = host.SetReadDeadline(time.Now().Add(udpIdle))
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}
