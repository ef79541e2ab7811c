package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkMTU is the largest possible size of a frame: fewer frames make the link faster.
const linkMTU = 65520

// NewNetNS makes a network namespace that exists as long as the returned
// descriptor, or a process or thread inside it; its loopback is up.
func NewNetNS() (fd int, err error) {
	fd = -1
	err = onThread(func() (bool, error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return false, fmt.Errorf("make a network namespace: %w", err)
		}
		ns, err := openThreadNS()
		if err != nil {
			return true, err
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			_ = unix.Close(ns)
			return true, fmt.Errorf("set up the loopback of a network namespace: %w", err)
		}
		fd = ns
		return true, nil
	})
	return fd, err
}

// InNetNS runs f in the network namespace that fd refers to, on a thread that
// nothing else runs on meanwhile. Goroutines that f starts run outside of it; the
// sockets that f opens stay in it.
func InNetNS(fd int, f func() error) error {
	return onThread(func() (bool, error) {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return false, fmt.Errorf("enter a network namespace: %w", err)
		}
		return true, f()
	})
}

// onThread runs f on a thread of its own. f says whether the thread has left its
// network namespace. The thread goes back to the scheduler only if it is in the
// namespace that it was in before. A process in a user namespace may leave the host's
// network namespace, but can't come back: such a thread ends.
func onThread(f func() (left bool, err error)) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and if the goroutine ends so, its thread does
		home, err := openThreadNS()
		if err != nil {
			done <- err
			return
		}
		left := true
		defer func() {
			if !left || unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = unix.Close(home)
			done <- err
		}()
		err = errors.New("interrupted") // f called runtime.Goexit
		left, err = f()
	}()
	return <-done
}

func openThreadNS() (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the thread's network namespace: %w", err)
	}
	return fd, nil
}

// OpenTap opens the tap device of that name in the current network namespace, and
// sets it up. If there is none, OpenTap makes it. The kernel's end is the guest's. A
// persistent device stays when it is closed, and can be taken over by opening it
// again. EBUSY then says that a process still has it open.
func OpenTap(name string, persist bool) (Link, error) {
	fail := func(err error) (Link, error) { return Link{}, fmt.Errorf("open tap %s: %w", name, err) }
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		keep := 0
		if persist {
			keep = 1
		}
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, keep)
	}
	var mac netlink.Link
	if err == nil {
		mac, err = raise(name)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fail(err)
	}
	return Link{File: os.NewFile(uintptr(fd), "tap "+name), MTU: linkMTU, GuestMAC: mac.Attrs().HardwareAddr}, nil
}

// OpenVeth finds or makes a pair of veth devices in the current network namespace,
// and sets both up. It opens peer, the gateway's end, for raw frames. It is used if
// /dev/net/tun can't be opened, and needs only the namespace's own privileges.
func OpenVeth(name, peer string) (Link, error) {
	fail := func(err error) (Link, error) { return Link{}, fmt.Errorf("open veth %s: %w", name, err) }
	if _, err := netlink.LinkByName(name); err != nil {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: linkMTU}, PeerName: peer}
		if err := netlink.LinkAdd(pair); err != nil {
			return fail(err)
		}
	}
	guest, err := raise(name)
	if err != nil {
		return fail(err)
	}
	ours, err := raise(peer)
	if err != nil {
		return fail(err)
	}
	fd, err := openPacket(ours.Attrs().Index)
	if err != nil {
		return fail(err)
	}
	return Link{File: os.NewFile(uintptr(fd), "packets of "+peer), MTU: linkMTU, GuestMAC: guest.Attrs().HardwareAddr}, nil
}

// openPacket opens a socket for all frames of an interface.
func openPacket(index int) (int, error) {
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	// Protocol 0 until it is bound: or it would hear the other interfaces.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	// A few frames of this size fill the usual buffers. Not every user may have
	// larger ones; then a full one costs a retransmission.
	const size = 4 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// raise sets an interface up, with the link's MTU and without IPv6 addresses but
// those that it is given.
func raise(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	// Not every kernel has this mode. The gateway drops frames from such an address.
	_ = netlink.LinkSetIP6AddrGenMode(l, ip6GenNone)
	if err := netlink.LinkSetMTU(l, linkMTU); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, err
	}
	return netlink.LinkByName(name)
}

const ip6GenNone = 1 // IN6_ADDR_GEN_MODE_NONE

// ConfigureGuestLink gives the guest's end of the link, in the current network
// namespace, its only IPv4 address and a default route. gVisor takes both from the
// interface when it starts, and removes them there. So call ConfigureGuestLink again
// before each start.
func ConfigureGuestLink(name string, guest netip.Prefix, gateway netip.Addr) error {
	l, err := raise(name)
	if err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	return configure(l, guest, gateway)
}

// ErrNoIPv6 says that the kernel has no IPv6, or that it is turned off.
var ErrNoIPv6 = errors.New("the kernel has no IPv6")

// ConfigureGuestLink6 does the same with IPv6, after ConfigureGuestLink. The gateway
// is the only other address on the link, and the guest's end knows its link address
// without asking. ErrNoIPv6 says that the kernel has no IPv6.
func ConfigureGuestLink6(name string, guest, gateway netip.Addr) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	if err := configure(l, netip.PrefixFrom(guest, guest.BitLen()), gateway); err != nil {
		for _, off := range []unix.Errno{unix.EACCES, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} { // by a setting; or altogether
			if errors.Is(err, off) {
				return fmt.Errorf("%w: %w", ErrNoIPv6, err)
			}
		}
		return err
	}
	neighbour := &netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT,
		IP: gateway.AsSlice(), HardwareAddr: net.HardwareAddr(gatewayMAC),
	}
	if err := netlink.NeighSet(neighbour); err != nil {
		return fmt.Errorf("tell %s the link address of %v: %w", name, gateway, err)
	}
	return nil
}

// HasAddress reports whether a link in the current network namespace has any address,
// as the guest's end does from ConfigureGuestLink until gVisor strips it.
func HasAddress(name string) (bool, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("addresses of %s: %w", name, err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("addresses of %s: %w", name, err)
	}
	return len(addrs) > 0, nil
}

// configure gives a link its only address of one protocol and the default route.
func configure(l netlink.Link, guest netip.Prefix, gateway netip.Addr) error {
	name, family := l.Attrs().Name, netlink.FAMILY_V4
	want, err := netlink.ParseAddr(guest.String())
	if err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	if guest.Addr().Is6() {
		family, want.Flags = netlink.FAMILY_V6, unix.IFA_F_NODAD // at once: nobody else is there
	}
	have, err := netlink.AddrList(l, family)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	for _, a := range have {
		if !a.Equal(*want) {
			if err := netlink.AddrDel(l, &a); err != nil {
				return fmt.Errorf("remove address %v of %s: %w", a.IPNet, name, err)
			}
		}
	}
	if err := netlink.AddrReplace(l, want); err != nil {
		return fmt.Errorf("give %s the address %v: %w", name, guest, err)
	}
	if !guest.Contains(gateway) {
		there := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(gateway.AsSlice())}
		if err := netlink.RouteReplace(there); err != nil {
			return fmt.Errorf("route to %v: %w", gateway, err)
		}
	}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway.AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("route by %v: %w", gateway, err)
	}
	return nil
}
