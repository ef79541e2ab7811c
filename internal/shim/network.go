package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// subnet is the network between a gateway and its guest. It is the same in every
// sandbox, each of which has a network namespace of its own.
var subnet = netip.PrefixFrom(netip.MustParseAddr(base.Gateway), 16)

// gateway6 is the gateway's IPv6 address, guests6 the network of what its guests
// are given: they have no other neighbour, and no route but by it.
var (
	gateway6 = netip.MustParseAddr("fdc0:7e2d:914b::1")
	guests6  = netip.MustParsePrefix("fdc0:7e2d:914b:1::/64")
)

// guestAddr is the guest's address, another one at each incarnation, so that no
// connection of an earlier one can be taken for alive.
func guestAddr(incarnation int64) netip.Addr {
	n := uint64(incarnation)
	a := subnet.Masked().Addr().As4()
	// The gateway is in the first /24. 0 and 255 would do in a /16, but some
	// programs think in /24s.
	a[2], a[3] = byte(1+n/254%250), byte(1+n%254)
	return netip.AddrFrom4(a)
}

// guestAddr6 is the guest's IPv6 address, as guestAddr.
func guestAddr6(incarnation int64) netip.Addr {
	a := guests6.Addr().As16()
	binary.BigEndian.PutUint64(a[8:], uint64(incarnation))
	return netip.AddrFrom16(a)
}

// configureLink gives eth0 in the current network namespace the guest's addresses.
func configureLink(st State) error {
	guest, err := netip.ParseAddr(st.Address)
	if err != nil {
		return err
	}
	if err := gateway.ConfigureGuestLink("eth0", netip.PrefixFrom(guest, subnet.Bits()), subnet.Addr()); err != nil || st.Address6 == "" {
		return err
	}
	if guest, err = netip.ParseAddr(st.Address6); err != nil {
		return err
	}
	return gateway.ConfigureGuestLink6("eth0", guest, gateway6)
}

// startLink makes the sandbox's network namespace and its link, or takes up those
// of a running sandbox, whose namespace is at path.
func (s *Shim) startLink(path string) (link gateway.Link, err error) {
	adopt := path != ""
	if adopt {
		s.netns, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		s.netns, err = gateway.NewNetNS()
	}
	if err != nil {
		s.netns = -1
		return link, fmt.Errorf("network namespace: %w", err)
	}
	err = gateway.InNetNS(s.netns, func() error {
		var err error
		link, s.state.Link, err = openLink(s.state.Link)
		if err != nil || adopt {
			return err
		}
		err = configureLink(s.state)
		if errors.Is(err, gateway.ErrNoIPv6) {
			s.log.Info("the sandbox has no IPv6", "why", err)
			s.state.Address6, err = "", nil
		}
		return err
	})
	if err != nil {
		return link, fmt.Errorf("network: %w", err)
	}
	return link, nil
}

// startNetwork makes the sandbox's network, or takes up that of a running
// sandbox, whose namespace is at path, and starts the gateway on it.
func (s *Shim) startNetwork(path string) error {
	link, err := s.startLink(path)
	if err != nil {
		return err
	}
	guest, err := netip.ParseAddr(s.state.Address)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	rules, err := policy.Preset(policy.None, policy.Machine{})
	if err != nil {
		return err
	}
	var limits policy.Limits
	if s.cfg.Network != nil {
		rules, limits = s.cfg.Network.Rules, s.cfg.Network.Limits
	}
	refused, connected := newEventLog(s.cfg.Dir, RefusedLog), newEventLog(s.cfg.Dir, ConnectedLog)
	requests := &requestLog{eventLog: newEventLog(s.cfg.Dir, RequestLog), path: filepath.Join(s.cfg.Dir, usageFile)}
	used, err := requests.open()
	if err != nil {
		s.log.Warn("the limits of connectors begin anew", "err", err)
	}
	s.gw = &gateway.Gateway{
		Link:   link,
		Addr:   subnet,
		Guest:  guest,
		Policy: policy.New(rules...),
		OnEvent: func(e gateway.Event) {
			if e.Allowed {
				connected.write(networkEvent(e))
			} else {
				refused.write(networkEvent(e))
			}
		},
		OnRequest: requests.add,
		Used:      used,
		Name:      func() string { return s.snapshot().Hostname },
		Logger:    s.log,
	}
	if s.state.Address6 != "" {
		s.gw.Addr6 = gateway6
		if s.gw.Guest6, err = netip.ParseAddr(s.state.Address6); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	log.SetOutput(gateway.Redacted(s.gw, os.Stderr)) // net/http quotes what comes unasked
	s.gw.Owner = ownerOf(newGuestClient(s.guestDialer()))
	if err := s.gw.SetConnectors(s.cfg.Connectors); err != nil {
		return err
	}
	s.gw.SetLimits(limits)
	if err := s.gw.Start(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// configureLink gives the guest's end of the link its addresses and routes again:
// gVisor takes them away when it starts.
func (s *Shim) configureLink() error {
	st := s.snapshot()
	if err := gateway.InNetNS(s.netns, func() error { return configureLink(st) }); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// openLink opens the gateway's end of the guest's eth0 in the current network
// namespace: a tap device, or where the machine does not let this user have one,
// a veth pair. kind is that of a link to take up, or empty.
func openLink(kind string) (gateway.Link, string, error) {
	if kind != "veth" {
		link, err := gateway.OpenTap("eth0", true)
		if err == nil || kind == "tap" {
			return link, "tap", err
		}
	}
	link, err := gateway.OpenVeth("eth0", "gateway0")
	return link, "veth", err
}
