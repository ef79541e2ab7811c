package nest

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// bridges keeps connections within the nest away from the relay, with a rule for the subnet of
// each link.
//
// gVisor gives each frame that crosses a bridge to the bridge's own IP stack as well. So a rule that
// leads connections to the relay also takes those between two containers.
type bridges struct {
	netns  *os.File // the nest's
	events *os.File // a netlink socket there, which tells of links
	known  map[netip.Prefix]bool
}

// watchBridges makes the rules for the links that are there already. The caller must close the
// events.
func watchBridges(netns *os.File) (*bridges, error) {
	b := &bridges{netns: netns, known: map[netip.Prefix]bool{}}
	err := within(netns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		b.events = os.NewFile(uintptr(fd), "links")
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)})
	})
	if err = errors.Join(err, b.look()); err != nil && b.events != nil {
		b.events.Close()
	}
	return b, err
}

// run follows the links until the events are closed.
func (b *bridges) run() {
	buf := make([]byte, 32<<10)
	for {
		_, err := b.events.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		// An error is of events that were lost: there may be news all the more.
		if err := b.look(); err != nil {
			slog.Warn("keep up with the links of the containers", "err", err)
		}
	}
}

// look brings the rules up to date.
func (b *bridges) look() error {
	return within(b.netns, func() error {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		now := map[netip.Prefix]bool{}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && p.Addr().String() != own {
				now[p.Masked()] = true
			}
		}
		var errs []error
		for p := range now {
			if b.known[p] {
				continue
			}
			if err := table("-I", "PREROUTING -d "+p.String()+" -j ACCEPT"); err != nil {
				errs = append(errs, err)
				delete(now, p) // it is tried again
			}
		}
		for p := range b.known {
			if !now[p] {
				errs = append(errs, table("-D", "PREROUTING -d "+p.String()+" -j ACCEPT"))
			}
		}
		b.known = now
		return errors.Join(errs...)
	})
}
