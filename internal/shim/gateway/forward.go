package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cove-dev/cove/internal/shim/hostnet"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// tooMany is the refusal of a connection beyond a limit of their number.
var tooMany = policy.Decision{Rule: "connection limit", Hint: "the sandbox has too many connections open at once; close some"}

// forward is called by the stack in a goroutine of its own for each connection
// that the sandbox opens, before it is answered.
func (g *Gateway) forward(r *tcp.ForwarderRequest) {
	if !g.enter() {
		r.Complete(true)
		return
	}
	defer g.wg.Done()
	id := r.ID() // Local is the far end as the guest sees it
	to := netip.AddrPortFrom(hostAddr(id.LocalAddress), id.LocalPort)
	from := source{policy.TCP, netip.AddrPortFrom(hostAddr(id.RemoteAddress), id.RemotePort)}

	window, ok := g.outward.take()
	if !ok {
		g.refuse(from, to, tooMany)
		r.Complete(true)
		return
	}
	if g.isOwn(to.Addr()) {
		g.local(r, from, to, window)
		return
	}
	defer g.outward.give(window)

	d := g.decide(to, policy.TCP)
	if l := g.limits.Load(); d.Allow && l != nil && l.conns != nil && !l.conns.Allow() {
		d = policy.Decision{Rule: "connection rate", Hint: "the sandbox opens more connections a second than its policy allows; open fewer, or keep them open"}
	}
	if !d.Allow {
		g.refuse(from, to, d)
		r.Complete(true)
		return
	}
	host, err := g.dialHost(to)
	if err != nil {
		r.Complete(true)
		g.Logger.Debug("connect for the sandbox", "to", to, "error", err)
		return
	}
	if host == nil { // it turned out to be the host itself
		g.refuse(from, to, policy.Policy{Own: []netip.Prefix{netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}}.Reach(to, policy.TCP, nil))
		r.Complete(true)
		return
	}
	c := g.accept(r, window)
	if c == nil {
		_ = host.Close()
		return
	}
	stop := context.AfterFunc(g.ctx, func() { _ = host.Close() })
	defer stop()
	o := g.opened(from, to, func() {
		_ = host.SetLinger(0)
		_ = host.Close()
		c.ep.Abort()
	})
	defer o.close()
	g.allowed(to, policy.TCP, d)
	if len(d.Names) > 0 {
		g.inspect(c, host, o)
		return
	}
	c.Join(host)
}

// accept answers the sandbox; nil says that it has given up.
func (g *Gateway) accept(r *tcp.ForwarderRequest, window int) *Conn {
	wq := new(waiter.Queue)
	ep, terr := r.CreateEndpoint(wq)
	r.Complete(false)
	if terr != nil {
		return nil
	}
	c := g.newConn(ep, wq, window)
	c.paced = true
	return c
}

// newConn is a connection of the stack whose buffers are of window bytes each.
func (g *Gateway) newConn(ep tcpip.Endpoint, wq *waiter.Queue, window int) *Conn {
	ep.SocketOptions().SetReceiveBufferSize(int64(window), true)
	ep.SocketOptions().SetSendBufferSize(int64(window), true)
	return &Conn{TCPConn: gonet.NewTCPConn(wq, ep), g: g, ep: ep, wq: wq, window: window}
}

// decide applies the policy to an address about to be dialled.
func (g *Gateway) decide(to netip.AddrPort, proto policy.Proto) policy.Decision {
	p, err := g.policyFor(to, proto)
	d := p.Reach(to, proto, g.pins.names(policy.Canonical(to.Addr())))
	if err != nil && !opensOwn(*g.policy.Load(), to, proto) {
		g.Logger.Error("read the host's addresses and routes", "to", to, "error", err)
		d = policy.Decision{Rule: "host", Hint: "the server can't tell its own addresses from others now, so only what a rule names is allowed; see its log"}
	}
	return d
}

// policyFor is the policy, with what it must know of the host to decide on a destination.
func (g *Gateway) policyFor(to netip.AddrPort, proto policy.Proto) (policy.Policy, error) {
	host, err := g.host.net()
	p, routeErr := host.Policy(*g.policy.Load(), to, proto)
	return p, errors.Join(err, routeErr)
}

// opensOwn reports whether a rule allows an address even if it is the host's own.
func opensOwn(p policy.Policy, to netip.AddrPort, proto policy.Proto) bool {
	a := policy.Canonical(to.Addr())
	if a.IsValid() {
		p.Own = append(slices.Clip(p.Own), netip.PrefixFrom(a, a.BitLen()))
	}
	return p.Reach(to, proto, nil).Allow
}

// mayPing reports whether an address may be asked for an echo.
func (g *Gateway) mayPing(a netip.Addr) bool {
	p, err := g.policyFor(netip.AddrPortFrom(a, 0), "")
	return err == nil && p.Ping(a, g.pins.names(policy.Canonical(a)))
}

// dialHost connects from the host. It returns nil if the connection leads to the host
// itself and no rule names that address. decide has asked the kernel about the route. But
// the route may have changed since, or the kernel may choose it by the source port.
func (g *Gateway) dialHost(to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(g.ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	host := c.(*net.TCPConn)
	if !opensOwn(*g.policy.Load(), to, policy.TCP) && stayedHere(to, host.LocalAddr().(*net.TCPAddr).AddrPort(), policy.TCP) {
		_ = host.SetLinger(0)
		return nil, host.Close()
	}
	return host, nil
}

// stayedHere reports whether an open connection leads to the host itself. A kernel that
// connects to one of its own addresses mostly uses that address as the source.
func stayedHere(to, local netip.AddrPort, proto policy.Proto) bool {
	if local.Addr().Unmap() == to.Addr().Unmap() {
		return true
	}
	own, err := hostnet.EndsHere(to, local, proto)
	return own || err != nil
}

// isOwn reports whether an address is one of the gateway's own.
func (g *Gateway) isOwn(a netip.Addr) bool { return a == g.Addr.Addr() || a == g.Addr6 }

// local takes a connection to the gateway's own address.
func (g *Gateway) local(r *tcp.ForwarderRequest, from source, to netip.AddrPort, window int) {
	if to.Addr() == g.Addr6 || to.Port() != dnsPort && to.Port() != httpPort {
		g.refuse(from, to, policy.Decision{
			Rule: "gateway",
			Hint: "the gateway answers only DNS and http://NAME.connect.internal/, at " + g.Addr.Addr().String() + "; add such a NAME: cove serve --connector NAME=URL",
		})
		r.Complete(true)
		g.outward.give(window)
		return
	}
	places := &g.http.heads
	if to.Port() == dnsPort {
		places = &g.dnsConns
	}
	if !places.enter() {
		g.refuse(from, to, tooMany)
		r.Complete(true)
		g.outward.give(window)
		return
	}
	c := g.accept(r, window)
	if c == nil {
		places.leave()
		g.outward.give(window)
		return
	}
	c.release = func() { places.leave(); g.outward.give(window) }
	if to.Port() == dnsPort {
		g.serveDNSConn(c, from)
		return
	}
	g.http.feed.put(g.http.heads.wrap(c))
}
