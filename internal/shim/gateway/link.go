package gateway

import (
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Link is the gateway's end of the sandbox's only link: OpenTap and OpenVeth
// make it.
type Link struct {
	File     *os.File         // reads and writes Ethernet frames; in non-blocking mode
	MTU      uint32           // without the Ethernet header
	GuestMAC net.HardwareAddr // of the guest's end
}

// gatewayMAC is the same in every sandbox, so that a gateway that takes over
// from one that died is not a stranger to its guest.
const gatewayMAC = tcpip.LinkAddress("\x02\xc0\x7e\x00\x00\x01")

// endpoint attaches a Link to the stack. It differs from gVisor's own fdbased in the
// frames that it lets in (see accept). And neither a frame nor an interface that goes
// down for a moment ends it.
type endpoint struct {
	file   *os.File
	mtu    uint32
	guest  [4]byte
	own    [4]byte
	bcast  [4]byte
	guest6 tcpip.Address         // none: no IPv6
	own6   tcpip.Address         // none: no IPv6
	ping   func(netip.Addr) bool // whether it may be asked for an echo
	log    *slog.Logger
	done   chan struct{} // closed when the reader has ended; nil if it never began

	mu     sync.RWMutex
	fd     int                     // guarded by mu; -1 once closed
	stackd stack.NetworkDispatcher // guarded by mu

	quiet   atomic.Bool  // nothing is sent
	frames  atomic.Int64 // that have come
	reading sync.Mutex   // held while a frame is taken from the link; mu may be taken then
	held    bool         // frames that come are dropped; guarded by reading
}

func newEndpoint(g *Gateway) *endpoint {
	e := &endpoint{file: g.Link.File, mtu: g.Link.MTU, guest: g.Guest.As4(), own: g.Addr.Addr().As4(), ping: g.mayPing, log: g.Logger, fd: -1}
	host := ^uint32(0) >> g.Addr.Bits()
	binary.BigEndian.PutUint32(e.bcast[:], binary.BigEndian.Uint32(e.own[:])|host)
	if g.Guest6.IsValid() {
		e.guest6, e.own6 = stackAddr(g.Guest6), stackAddr(g.Addr6)
	}
	// File.Fd would do, were it not that some versions make the file blocking.
	if raw, err := e.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { e.fd = int(fd) })
	}
	return e
}

// stop ends the reader, closes the link and waits. Later writes go nowhere.
func (e *endpoint) stop() {
	e.mu.Lock()
	open := e.fd >= 0
	e.fd = -1
	done := e.done
	e.mu.Unlock()
	if open {
		_ = e.file.Close()
	}
	if done != nil {
		<-done
	}
}

// read hands frames to the stack until the link is closed.
func (e *endpoint) read(to stack.NetworkDispatcher) {
	defer close(e.done)
	raw, err := e.file.SyscallConn()
	if err != nil {
		return // it is closed
	}
	frame := make([]byte, header.EthernetMinimumSize+1<<16)
	var n int
	var held bool
	take := func(fd uintptr) bool {
		e.reading.Lock()
		defer e.reading.Unlock()
		held = e.held
		n, err = unix.Read(int(fd), frame)
		e.frames.Add(1)
		return err != unix.EAGAIN
	}
	for {
		if raw.Read(take) != nil {
			return // it is closed
		}
		switch err {
		case nil:
		case unix.ENETDOWN, unix.ENOBUFS, unix.EINTR:
			continue // the kernel reports the former once each
		default:
			e.log.Error("the sandbox's link is gone; it has no network", "error", err)
			return
		}
		if held {
			continue
		}
		if !e.accept(frame[:n]) {
			e.echo(frame[:n])
			continue
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
			Payload: buffer.MakeWithView(buffer.NewViewWithData(frame[:n])),
		})
		if e.ParseHeader(pkt) {
			to.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
		}
		pkt.DecRef()
	}
}

// For how long nothing may come before it is taken for all, and the longest wait. A paused
// sandbox sends no more, so what is on the link has an end.
const (
	settled = 3 * time.Millisecond
	settles = 10 * time.Second
)

// hold makes the link send nothing more to the sandbox. It lets in the frames that
// the sandbox sent before. Later ones are dropped.
func (e *endpoint) hold() {
	e.quiet.Store(true)
	for deadline := time.Now().Add(settles); ; {
		before := e.frames.Load()
		<-time.After(settled)
		e.reading.Lock()
		if time.Now().After(deadline) || e.frames.Load() == before && !e.readable() {
			e.held = true
			e.reading.Unlock()
			return
		}
		e.reading.Unlock()
	}
}

// readable reports whether the link has a frame.
func (e *endpoint) readable() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	poll := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}} // none, once it is closed
	n, err := unix.Poll(poll, 0)
	return n > 0 && err == nil
}

// maxQueued is more frames than a link keeps for its reader.
const maxQueued = 1 << 14

// release ends hold. Frames that are on the link already are dropped, too.
func (e *endpoint) release() {
	defer e.quiet.Store(false)
	e.reading.Lock()
	defer e.reading.Unlock()
	if !e.held {
		return
	}
	e.held = false
	e.mu.RLock()
	defer e.mu.RUnlock()
	var frame [1]byte // the rest of a frame goes with it
	for range maxQueued {
		if _, err := unix.Read(e.fd, frame[:]); err != nil && err != unix.EINTR {
			return
		}
	}
}

// accept decides which frames are let in: a hostile guest may put any frame on the
// link. ARP must come from the guest's address and ask about the gateway's. IPv4 must
// come from the guest's address, and be TCP or UDP to one machine, or ICMP to the
// gateway. accept6 decides on IPv6. Any other frame is dropped.
func (e *endpoint) accept(frame []byte) bool {
	if len(frame) < header.EthernetMinimumSize {
		return false
	}
	eth, body := header.Ethernet(frame), frame[header.EthernetMinimumSize:]
	if eth.Type() == header.IPv6ProtocolNumber {
		return e.accept6(eth.DestinationAddress(), body)
	}
	if to := eth.DestinationAddress(); to != gatewayMAC && to != header.EthernetBroadcastAddress {
		return false
	}
	switch eth.Type() {
	case header.ARPProtocolNumber:
		arp := header.ARP(body)
		return arp.IsValid() && [4]byte(arp.ProtocolAddressSender()) == e.guest && [4]byte(arp.ProtocolAddressTarget()) == e.own
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(body)
		if !ip.IsValid(len(body)) {
			return false
		}
		to := ip.DestinationAddress().As4()
		if ip.SourceAddress().As4() != e.guest || to[0] >= 224 || to == e.bcast {
			return false
		}
		switch ip.TransportProtocol() {
		case header.TCPProtocolNumber, header.UDPProtocolNumber:
			return true
		case header.ICMPv4ProtocolNumber:
			return to == e.own
		}
	}
	return false
}

// accept6 lets in IPv6 from the guest's address without extension headers; fragments
// have these, too. It lets in TCP and UDP to one machine. To the gateway it also lets
// in an echo request, and the question for the gateway's link address. The guest need
// not tell its own link address, which is known, and only the gateway is a router on
// the link.
func (e *endpoint) accept6(mac tcpip.LinkAddress, body []byte) bool {
	ip := header.IPv6(body)
	if e.guest6.Len() == 0 || !ip.IsValid(len(body)) || ip.SourceAddress() != e.guest6 {
		return false
	}
	to := ip.DestinationAddress()
	if solicited := header.SolicitedNodeAddr(e.own6); to == solicited {
		return mac == header.EthernetAddressFromMulticastIPv6Address(to) && e.asksForOwn(ip)
	}
	if mac != gatewayMAC || header.IsV6MulticastAddress(to) || header.IsV4MappedAddress(to) {
		return false
	}
	switch ip.NextHeader() {
	case uint8(header.TCPProtocolNumber), uint8(header.UDPProtocolNumber):
		return true
	case uint8(header.ICMPv6ProtocolNumber):
		return to == e.own6 && (e.asksForOwn(ip) || isEcho6(ip))
	}
	return false
}

// asksForOwn reports whether a packet is a neighbour solicitation about the
// gateway's own address.
func (e *endpoint) asksForOwn(ip header.IPv6) bool {
	message := header.ICMPv6(ip.Payload())
	return ip.NextHeader() == uint8(header.ICMPv6ProtocolNumber) && ip.HopLimit() == header.NDPHopLimit &&
		len(message) >= header.ICMPv6NeighborSolicitMinimumSize && message.Type() == header.ICMPv6NeighborSolicit && message.Code() == 0 &&
		header.NDPNeighborSolicit(message.MessageBody()).TargetAddress() == e.own6
}

// isEcho6 reports whether a packet is an echo request.
func isEcho6(ip header.IPv6) bool {
	message := header.ICMPv6(ip.Payload())
	return ip.NextHeader() == uint8(header.ICMPv6ProtocolNumber) && len(message) >= header.ICMPv6EchoMinimumSize &&
		message.Type() == header.ICMPv6EchoRequest && message.Code() == 0
}

// echo answers an echo request to an address that may be asked for it, which the
// stack would for its own address alone. The frame becomes the answer.
func (e *endpoint) echo(frame []byte) {
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	eth, body := header.Ethernet(frame), frame[header.EthernetMinimumSize:]
	if eth.DestinationAddress() != gatewayMAC {
		return
	}
	var n int
	switch eth.Type() {
	case header.IPv4ProtocolNumber:
		n = e.echo4(body)
	case header.IPv6ProtocolNumber:
		n = e.echo6(body)
	}
	if n == 0 {
		return
	}
	eth.Encode(&header.EthernetFields{SrcAddr: gatewayMAC, DstAddr: eth.SourceAddress(), Type: eth.Type()})
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.fd >= 0 && !e.quiet.Load() {
		_, _ = unix.Write(e.fd, frame[:header.EthernetMinimumSize+n]) // a frame that the link can't take is lost
	}
}

// echo4 makes the answer of an IPv4 packet and returns its length, or 0 if there is
// none.
func (e *endpoint) echo4(body []byte) int {
	ip := header.IPv4(body)
	if !ip.IsValid(len(ip)) || ip.SourceAddress().As4() != e.guest || ip.TransportProtocol() != header.ICMPv4ProtocolNumber ||
		ip.More() || ip.FragmentOffset() != 0 {
		return 0
	}
	message := header.ICMPv4(ip.Payload())
	if len(message) < header.ICMPv4MinimumSize || message.Type() != header.ICMPv4Echo || !e.ping(netip.AddrFrom4(ip.DestinationAddress().As4())) {
		return 0
	}
	message.SetType(header.ICMPv4EchoReply)
	message.SetChecksum(0)
	message.SetChecksum(header.ICMPv4Checksum(message, 0))
	from, to := ip.SourceAddress(), ip.DestinationAddress()
	ip.SetSourceAddress(to) // their sum, and so the header's, stays
	ip.SetDestinationAddress(from)
	return int(ip.TotalLength())
}

// echo6 is echo4 for IPv6.
func (e *endpoint) echo6(body []byte) int {
	ip := header.IPv6(body)
	if e.guest6.Len() == 0 || !ip.IsValid(len(ip)) || ip.SourceAddress() != e.guest6 || !isEcho6(ip) {
		return 0
	}
	from, to := ip.SourceAddress(), ip.DestinationAddress()
	if header.IsV6MulticastAddress(to) || header.IsV4MappedAddress(to) || !e.ping(hostAddr(to)) {
		return 0
	}
	message := header.ICMPv6(ip.Payload())
	message.SetType(header.ICMPv6EchoReply)
	message.SetChecksum(0)
	message.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: message, Src: to, Dst: from}))
	ip.SetSourceAddress(to)
	ip.SetDestinationAddress(from)
	return header.IPv6MinimumSize + int(ip.PayloadLength())
}

// maxParts is how many parts of a frame one call passes to the kernel. The kernel
// takes 1,024 at most. The parts of a frame that has more are copied together.
const maxParts = 64

// WritePackets implements stack.LinkWriter. A frame that the link can't take is
// lost, as on any link.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	e.mu.RLock() // the descriptor must not be closed, and its number used again, meanwhile
	defer e.mu.RUnlock()
	if e.fd < 0 {
		return 0, &tcpip.ErrClosedForSend{}
	}
	if e.quiet.Load() {
		return pkts.Len(), nil // the stack will send it again
	}
	for i, pkt := range pkts.AsSlice() {
		parts := pkt.AsSlices()
		if len(parts) > maxParts { // many small writes, which have become one segment
			parts = [][]byte{slices.Concat(parts...)}
		}
		if _, err := unix.Writev(e.fd, parts); err != nil {
			if errno, ok := err.(unix.Errno); ok {
				return i, tcpip.TranslateErrno(errno)
			}
			return i, &tcpip.ErrInvalidEndpointState{}
		}
	}
	return pkts.Len(), nil
}

// Attach implements stack.LinkEndpoint: it starts the reader.
func (e *endpoint) Attach(to stack.NetworkDispatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	start := to != nil && e.done == nil
	e.stackd = to
	if start {
		e.done = make(chan struct{})
		go e.read(to)
	}
}

// IsAttached implements stack.LinkEndpoint.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.stackd != nil
}

// AddHeader implements stack.LinkEndpoint.
func (e *endpoint) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.LinkEndpoint.
func (e *endpoint) ParseHeader(pkt *stack.PacketBuffer) bool {
	h, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(h).Type()
	}
	return ok
}

// Capabilities implements stack.LinkEndpoint. Frames from the guest have not been on
// any wire, and over a veth their checksums have not been filled in.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

// The rest of stack.LinkEndpoint.

func (e *endpoint) MTU() uint32                             { return e.mtu }
func (e *endpoint) SetMTU(uint32)                           {}
func (e *endpoint) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (e *endpoint) LinkAddress() tcpip.LinkAddress          { return gatewayMAC }
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (e *endpoint) Wait()                                   {}
func (e *endpoint) Close()                                  {}
func (e *endpoint) SetOnCloseAction(func())                 {}
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
