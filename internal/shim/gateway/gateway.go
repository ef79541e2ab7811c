// Package gateway is the network of one sandbox, in user space. It uses gVisor's TCP/IP
// stack as a library, on the far end of the sandbox's only link. All traffic out of the
// sandbox passes through the gateway, which decides on it. Traffic that is not allowed
// goes nowhere, because nothing else listens on that link.
//
//   - DNS at the gateway's address, port 53, over UDP and TCP: A, AAAA, CNAME,
//     HTTPS and SVCB of the names that the policy has, from the host's resolvers;
//     every other type is answered with no records. Which names an address was
//     given out under is remembered.
//   - TCP to any other address is decided on by the policy, on the address
//     dialled, then dialled from the host and copied. Where an address is allowed
//     under its names, the name in a TLS handshake or in each HTTP request must be
//     one of them.
//   - http://NAME.connect.internal/ leads to a named upstream (see connect.Upstream).
//   - ICMP echo is answered by the stack for the gateway's address, and those that
//     the policy allows.
//   - UDP to anywhere else is refused (ICMP port unreachable) unless a rule allows
//     it, any other protocol and any frame that does not come from the guest's own
//     address is dropped.
//   - IPv6 is decided on as IPv4 is. Where the host has a route for one of the two
//     only, a name that has addresses of both is answered with those of that one.
//   - Gateway.Dial connects to the sandbox's ports.
//
// The package works on Linux only.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cove-dev/cove/internal/shim/hostnet"
	"github.com/cove-dev/cove/internal/shim/policy"
)

const (
	nicID = 1

	maxInward   = 2048             // connections into the sandbox that are open at once
	maxHalfOpen = 1024             // connections out whose upstream is still being dialled
	dialTimeout = 20 * time.Second // of an upstream
	timeWait    = 5 * time.Second  // the link neither reorders nor delays for longer
)

// Gateway is the network of one sandbox. Set the fields, call Start once, and
// Close once, also after a Start that failed. The methods may be called from any
// goroutine.
type Gateway struct {
	Link  Link         // required; the gateway closes it
	Addr  netip.Prefix // required: the gateway's own IPv4 address in the sandbox's subnet
	Guest netip.Addr   // required: the sandbox's address in it

	// The same of IPv6. They have no subnet: each is the other's only neighbour. The
	// gateway's address serves only echoes. Without them there is no IPv6.
	Addr6, Guest6 netip.Addr

	// Policy decides what the sandbox may reach, until SetPolicy. The addresses of the
	// host and of its neighbours are added to its Own and Near.
	Policy policy.Policy

	// HostNet says which addresses are the host's own and its neighbours'; nil means
	// those of the network that this process is in. While it fails, nothing is
	// allowed that no rule allows. That network's routes make further addresses the
	// host's own (hostnet.EndsHere).
	HostNet func() (hostnet.Net, error)

	// Resolvers are the DNS servers that lookups go to, in order; none means
	// those of /etc/resolv.conf.
	Resolvers []netip.AddrPort

	// MaxConns bounds the connections out of the sandbox that are open at once;
	// 0 means 4,096. Those beyond are reset.
	MaxConns int

	// OnEvent is told of connections and of refusals, one at a time; nil means
	// nobody. It must not block for long, and is spared the most of a flood of
	// refusals (Event.Suppressed).
	OnEvent func(Event)

	// Owner asks the sandbox which process has the socket of that address; nil means
	// that it can't be asked. It is called for refusals, as a limit of their rate
	// allows, before they are answered, and must return when its context ends.
	Owner func(ctx context.Context, proto policy.Proto, from netip.AddrPort) (Process, error)

	// OnRequest is told of the requests through connectors, each when it is over,
	// one at a time; nil means nobody. It must not block for long.
	OnRequest func(Request)

	// Used is the use of connectors before this gateway, by name.
	Used map[string]Usage

	Name   func() string // of the sprite, for hints; nil: not known
	Logger *slog.Logger  // nil means discard

	stack           *stack.Stack
	link            *endpoint
	ctx             context.Context // ends at Close
	cancel          context.CancelFunc
	wg              sync.WaitGroup
	http            *connectors
	web             *web
	host            hostView
	inward, outward share // of the connections into the sandbox, and out of it
	parsed          budget
	holders         holders
	dnsConns        heads
	datagrams       chan struct{} // a place for each flow of UDP
	refusals
	pins   pins
	cache  dnsCache
	policy atomic.Pointer[policy.Policy]
	limits atomic.Pointer[limiter] // nil: none

	mu       sync.Mutex
	closed   bool                  // guarded by mu
	upstream map[string]*connector // guarded by mu
	used     map[string]*usage     // of connectors, also of those that are gone; guarded by mu
	open     map[*opened]struct{}  // guarded by mu

	telling sync.Mutex // held while OnRequest is called
}

// Start brings the network up. It returns at once.
func (g *Gateway) Start() error {
	if !g.Addr.Addr().Is4() || !g.Guest.Is4() || !g.Addr.Contains(g.Guest) || g.Addr.Addr() == g.Guest {
		return fmt.Errorf("gateway: %v is not another IPv4 address in the network of %v", g.Guest, g.Addr)
	}
	if (g.Addr6.IsValid() || g.Guest6.IsValid()) && (!isIPv6(g.Addr6) || !isIPv6(g.Guest6) || g.Addr6 == g.Guest6) {
		return fmt.Errorf("gateway: %v and %v are not two IPv6 addresses", g.Addr6, g.Guest6)
	}
	if g.Link.File == nil {
		return errors.New("gateway: no link")
	}
	if g.Logger == nil {
		g.Logger = slog.New(slog.DiscardHandler)
	}
	if g.MaxConns <= 0 {
		g.MaxConns = 4096
	}
	g.policy.Store(&g.Policy)
	g.inward.max, g.outward.max = maxInward, g.MaxConns
	g.dnsConns.max = maxDNSConns
	g.holders.max = cmp.Or(g.holders.max, maxHeld)
	g.datagrams = make(chan struct{}, maxDatagramFlows)
	g.asks, g.asked = rate.NewLimiter(ownerRate, ownerBurst), make(chan struct{}, ownerAsked)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.host.list = g.HostNet
	g.host.resolvers = g.Resolvers
	if err := g.startStack(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if err := g.startDNS(); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	g.http = newConnectors(g)
	g.wg.Go(g.http.serve)
	g.web = newWeb(g)
	g.wg.Go(g.web.run)
	g.wg.Go(g.watchHeld)
	return nil
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }

func (g *Gateway) startStack() error {
	s := stack.New(stack.Options{
		// The zero options of IPv6: no address but those that are set, nothing asked
		// of routers, nothing taken from them.
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	g.stack = s
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	wait := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	// RACK is off. With it, data that is lost at once, as during Hold, is sent again at
	// two segments in 200 ms, or not at all.
	recovery := tcpip.TCPRecovery(0)
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &wait, &recovery,
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: mostWindow, Max: mostWindow},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: mostWindow, Max: mostWindow},
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set TCP option %T: %v", o, err)
		}
	}
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, mostWindow, maxHalfOpen, g.forward).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, g.forwardUDP).HandlePacket)

	g.link = newEndpoint(g)
	if err := s.CreateNIC(nicID, g.link); err != nil {
		return fmt.Errorf("attach the link: %v", err)
	}
	// Promiscuous: take packets for any address. Spoofing: answer from it.
	if err := s.SetPromiscuousMode(nicID, true); err != nil {
		return fmt.Errorf("set promiscuous mode: %v", err)
	}
	if err := s.SetSpoofing(nicID, true); err != nil {
		return fmt.Errorf("set spoofing: %v", err)
	}
	if err := g.addEnds(ipv4.ProtocolNumber, g.Addr, g.Guest); err != nil {
		return err
	}
	if !g.Guest6.IsValid() {
		return nil
	}
	return g.addEnds(ipv6.ProtocolNumber, netip.PrefixFrom(g.Addr6, 128), g.Guest6)
}

// addEnds gives the stack the link's two addresses of one protocol. The guest's is
// all that there is a route to.
func (g *Gateway) addEnds(proto tcpip.NetworkProtocolNumber, own netip.Prefix, guest netip.Addr) error {
	addr := tcpip.ProtocolAddress{
		Protocol:          proto,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: stackAddr(own.Addr()), PrefixLen: own.Bits()},
	}
	if err := g.stack.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("set address %v: %v", own, err)
	}
	to := stackAddr(guest)
	g.stack.AddRoute(tcpip.Route{Destination: tcpip.AddressWithPrefix{Address: to, PrefixLen: to.BitLen()}.Subnet(), NIC: nicID})
	// The only neighbour is known, so that a sandbox that sleeps does not become
	// unreachable for want of an answer to ARP.
	mac := tcpip.LinkAddress(g.Link.GuestMAC)
	if err := g.stack.AddStaticNeighbor(nicID, proto, to, mac); err != nil {
		return fmt.Errorf("set the guest's link address: %v", err)
	}
	return nil
}

// stackAddr is an address as the stack has it, and hostAddr the other way round.
func stackAddr(a netip.Addr) tcpip.Address {
	if a.Is4() {
		return tcpip.AddrFrom4(a.As4())
	}
	return tcpip.AddrFrom16(a.As16())
}

func hostAddr(a tcpip.Address) netip.Addr {
	if a.Len() == header.IPv4AddressSize {
		return netip.AddrFrom4(a.As4())
	}
	return netip.AddrFrom16(a.As16())
}

// Close ends all connections and goroutines of the gateway, waits for them, and
// closes the link. A second Close is no error.
func (g *Gateway) Close() error {
	g.mu.Lock()
	again := g.closed
	g.closed = true
	g.mu.Unlock()
	if again {
		return nil
	}
	if g.link == nil { // Start failed, or never was
		if g.Link.File != nil {
			return g.Link.File.Close()
		}
		return nil
	}
	g.cancel()
	if g.http != nil {
		g.http.close()
		g.web.close()
	}
	g.link.stop()
	done := make(chan struct{})
	go func() { g.wg.Wait(); close(done) }()
	// The stack would miss a handshake that is under way when it is asked to close. So
	// abort connections until all goroutines that may have one are gone.
	for waiting := true; waiting; {
		for _, ep := range g.stack.RegisteredEndpoints() {
			ep.Abort()
		}
		select {
		case <-done:
			waiting = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	g.stack.Close()
	g.stack.Wait()
	return nil
}

// Hold makes the gateway send nothing to the sandbox until Release. It lets in the
// frames that the sandbox has sent before, and drops later ones. The memory of a
// sandbox is saved without the gateway. The saved sandbox does not have what it would
// acknowledge after that moment, so the gateway must not forget that data. Frames that
// the sandbox sent before must not be lost: gVisor does not send them again by itself
// after a restore. Connections go on: data that is lost meanwhile is sent again. Hold
// takes some milliseconds. The gateway must be started.
func (g *Gateway) Hold() { g.link.hold() }

// Release ends Hold, if it was called. Frames that are on the link by then are dropped,
// too.
func (g *Gateway) Release() { g.link.release() }

// enter counts the caller, unless the gateway closes. If it returns true, the caller
// must call g.wg.Done.
func (g *Gateway) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Add(1)
	return true
}

func (g *Gateway) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Dial opens a TCP connection from the gateway's address to a port of the
// sandbox. The connection ends with net.ErrClosed when the gateway is closed.
func (g *Gateway) Dial(ctx context.Context, port int) (*Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("dial the sandbox: %d is not a port", port)
	}
	remote := tcpip.FullAddress{NIC: nicID, Addr: stackAddr(g.Guest), Port: uint16(port)}
	fail := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(g.Guest, uint16(port))), Err: err}
	}
	if err := ctx.Err(); err != nil {
		return nil, fail(err)
	}
	if g.isClosed() {
		return nil, fail(net.ErrClosed)
	}
	window, ok := g.inward.take()
	if !ok {
		return nil, fail(errTooMany)
	}
	c, err := g.connect(ctx, remote, window)
	if err != nil {
		g.inward.give(window)
		return nil, fail(err)
	}
	return c, nil
}

// connect is Dial for a caller that has a place for the connection.
func (g *Gateway) connect(ctx context.Context, remote tcpip.FullAddress, window int) (*Conn, error) {
	wq := new(waiter.Queue)
	ep, terr := g.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, wq)
	if terr != nil {
		return nil, plain(terr)
	}
	c := g.newConn(ep, wq, window)
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	terr = ep.Bind(tcpip.FullAddress{NIC: nicID, Addr: stackAddr(g.Addr.Addr())})
	if terr == nil {
		terr = ep.Connect(remote)
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ready:
			terr = ep.LastError()
		case <-ctx.Done():
			ep.Abort()
			return nil, ctx.Err()
		case <-g.ctx.Done():
			ep.Abort()
			return nil, net.ErrClosed
		}
	}
	if terr != nil {
		ep.Close()
		return nil, plain(terr)
	}
	c.release = func() { g.inward.give(window) }
	return c, nil
}

// errTooMany says that as many connections into the sandbox are open as may be.
var errTooMany = fmt.Errorf("%d connections into the sandbox are open already", maxInward)

// plain turns the stack's errors into those that the net package gives.
func plain(err tcpip.Error) error {
	switch err.(type) {
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable:
		return syscall.ENETUNREACH
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	}
	return errors.New(err.String())
}
