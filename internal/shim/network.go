package shim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// subnet is the network between a gateway and its guest. It is the same in every
// sandbox: each has a network namespace of its own.
var subnet = netip.PrefixFrom(netip.MustParseAddr(base.Gateway), 16)

// gateway6 is the gateway's IPv6 address, and guests6 the network of the guests'
// addresses. A guest has no neighbour but the gateway, and no route but through it.
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

// A network is a sandbox's network namespace, the link in it, and the gateway at the
// link's other end. start makes or takes up all of these, and close ends them.
type network struct {
	record *record
	log    *slog.Logger

	netns int              // file descriptor; -1: none
	gw    *gateway.Gateway // nil before start. It stays after close, so that later calls of the guest get an error
}

// path is the sandbox's network namespace, for the children of this process.
func (n *network) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.netns) }

// open makes the sandbox's network namespace and its link. If path is not empty, it
// takes up those of a running sandbox, whose namespace is at path.
func (n *network) open(path string, st *State) (link gateway.Link, err error) {
	adopt := path != ""
	if adopt {
		n.netns, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		n.netns, err = gateway.NewNetNS()
	}
	if err != nil {
		n.netns = -1
		return link, fmt.Errorf("network namespace: %w", err)
	}
	err = gateway.InNetNS(n.netns, func() error {
		var err error
		link, st.Link, err = openLink(st.Link)
		if err != nil || adopt {
			return err
		}
		err = configureLink(*st)
		if errors.Is(err, gateway.ErrNoIPv6) {
			n.log.Info("the sandbox has no IPv6", "why", err)
			st.Address6, err = "", nil
		}
		return err
	})
	if err != nil {
		return link, fmt.Errorf("network: %w", err)
	}
	return link, nil
}

// start makes the sandbox's network, or takes up that of a running
// sandbox, whose namespace is at path, and starts the gateway on it.
func (n *network) start(cfg Config, path string) error {
	st := n.record.get()
	link, err := n.open(path, &st)
	n.record.begin(st)
	if err != nil {
		return err
	}
	guest, err := netip.ParseAddr(st.Address)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	rules, err := policy.Preset(policy.None, policy.Machine{})
	if err != nil {
		return err
	}
	var limits policy.Limits
	if cfg.Network != nil {
		rules, limits = cfg.Network.Rules, cfg.Network.Limits
	}
	refused, connected := newEventLog(cfg.Dir, RefusedLog), newEventLog(cfg.Dir, ConnectedLog)
	requests := &requestLog{eventLog: newEventLog(cfg.Dir, RequestLog), path: filepath.Join(cfg.Dir, usageFile)}
	used, err := requests.open()
	if err != nil {
		n.log.Warn("the limits of connectors start again from zero", "err", err)
	}
	n.gw = &gateway.Gateway{
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
		Name:      func() string { return n.record.get().Hostname },
		Logger:    n.log,
	}
	if st.Address6 != "" {
		n.gw.Addr6 = gateway6
		if n.gw.Guest6, err = netip.ParseAddr(st.Address6); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	log.SetOutput(gateway.Redacted(n.gw, os.Stderr)) // net/http quotes what comes unasked
	n.gw.Owner = ownerOf(newGuestClient(n.guest()))
	if err := n.gw.SetConnectors(cfg.Connectors); err != nil {
		return err
	}
	n.gw.SetLimits(limits)
	if err := n.gw.Start(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// guest dials the guest by the state as it is then.
func (n *network) guest() guestDialer { return guestDialer{gw: n.gw, state: n.record.get} }

// configure gives the guest's end of the link its addresses and routes again:
// gVisor takes them away when it starts.
func (n *network) configure() error {
	st := n.record.get()
	if err := gateway.InNetNS(n.netns, func() error { return configureLink(st) }); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// release makes the gateway hear the link again as soon as only the next sandbox can
// speak there. Before, the old sandbox may still speak while it dies. Or the host's
// kernel speaks: it has the guest's addresses until the next sandbox takes them, and
// says that it knows of no connection. The caller calls finish when the next sandbox
// runs.
func (n *network) release(next State) (finish func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := gateway.InNetNS(n.netns, func() error {
			for speaks := true; speaks && ctx.Err() == nil; {
				if speaks = acts(next.OldPID, next.OldStart); !speaks {
					var err error
					if speaks, err = gateway.HasAddress("eth0"); err != nil {
						return err
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
			return nil
		})
		n.gw.Release()
		done <- err
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			n.log.Warn("release the link of a restored sandbox", "err", err)
		}
	}
}

// decide replaces what the gateway decides by.
func (n *network) decide(set policy.Set) {
	n.gw.SetLimits(set.Limits)
	n.gw.SetPolicy(policy.New(set.Rules...))
}

// close ends the network. It may be called before start, and again.
func (n *network) close() error {
	var errs []error
	if n.gw != nil {
		errs = append(errs, n.gw.Close())
	}
	if n.netns >= 0 {
		errs = append(errs, unix.Close(n.netns))
		n.netns = -1
	}
	return errors.Join(errs...)
}

// openLink opens the gateway's end of the guest's eth0 in the current network
// namespace. The link is a tap device, or a veth pair if the machine lets this user
// have no tap device. kind is the kind of a link to take up, or empty.
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
