package nest

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// linkName is a bridge that nothing else is joined to.
const linkName = "sprite0"

// link makes the link that the default route leads to. Without a route, a connection would
// fail before a rule could lead it to the relay.
func link() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifinfo := make([]byte, unix.SizeofIfInfomsg)
	kind := attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("bridge")))
	if err := ask(fd, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifinfo, attribute(unix.IFLA_IFNAME, []byte(linkName+"\x00")), kind); err != nil {
		return fmt.Errorf("make the link %s: %w", linkName, err)
	}
	it, err := net.InterfaceByName(linkName)
	if err != nil {
		return err
	}
	index := binary.NativeEndian.AppendUint32(nil, uint32(it.Index))
	up := make([]byte, unix.SizeofIfInfomsg)
	copy(up[4:], index)
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	if err := ask(fd, unix.RTM_NEWLINK, 0, up); err != nil {
		return fmt.Errorf("set the link %s up: %w", linkName, err)
	}
	ip := netip.MustParseAddr(own).AsSlice()
	ifaddr := append([]byte{unix.AF_INET, 30, 0, 0}, index...)
	if err := ask(fd, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifaddr, attribute(unix.IFA_LOCAL, ip), attribute(unix.IFA_ADDRESS, ip)); err != nil {
		return fmt.Errorf("give the link %s an address: %w", linkName, err)
	}
	route := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	gateway := attribute(unix.RTA_GATEWAY, netip.MustParseAddr(Host).AsSlice())
	if err := ask(fd, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, route, gateway, attribute(unix.RTA_OIF, index)); err != nil {
		return fmt.Errorf("make the default route: %w", err)
	}
	return nil
}

// ask sends a request to the kernel, and waits for its answer.
func ask(fd int, kind, flags uint16, body []byte, attributes ...[]byte) error {
	for _, a := range attributes {
		body = append(body, a...)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, 1, 0, 0, 0, 0, 0, 0, 0) // the sequence number, and the kernel's as the port
	if err := unix.Sendto(fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("the kernel's answer has %d bytes, and no error number", n)
	}
	if number := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:])); number != 0 {
		return unix.Errno(-number)
	}
	return nil
}

// attribute is an attribute of a request, padded.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}
