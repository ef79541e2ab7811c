package ports

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// The holder of a socket is found by the socket's own address.
func TestOwner(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := sprites.Process{Name: strings.TrimSpace(string(comm)), PID: os.Getpid()}
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		pc, err := net.Dial("udp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		any, err := net.ListenPacket("udp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer any.Close()
		from := netip.MustParseAddrPort(pc.LocalAddr().String())
		for what, at := range map[string]struct {
			proto string
			from  netip.AddrPort
		}{
			"a connection": {"tcp", netip.MustParseAddrPort(c.LocalAddr().String())}, "datagrams": {"udp", from},
			"of any address": {"udp", netip.AddrPortFrom(from.Addr(), any.LocalAddr().(*net.UDPAddr).AddrPort().Port())},
		} {
			if got, ok := owner(at.proto, at.from); !ok || got != want {
				t.Errorf("%s: %s of %v: got %+v, %v, want %+v", host, what, at.from, got, ok, want)
			}
		}
		gone := netip.MustParseAddrPort(c.LocalAddr().String())
		if got, ok := owner("tcp", netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), gone.Port())); ok {
			t.Errorf("another address: got %+v", got)
		}
		if got, ok := owner("udp", netip.AddrPortFrom(gone.Addr(), 1)); ok {
			t.Errorf("a port that nobody has: got %+v", got)
		}
	}
}
