package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// hostView is what the gateway must know of the machine that it runs on. Both
// answers may change while it runs (a laptop joins a network), so they are asked
// again when they are older than hostFresh.
type hostView struct {
	list      func() ([]netip.Addr, error) // nil: the interfaces'
	resolvers []netip.AddrPort             // none: those of resolv.conf

	mu       sync.Mutex
	own      []netip.Addr     // guarded by mu
	ownErr   error            // guarded by mu
	ownAt    time.Time        // guarded by mu
	conf     []netip.AddrPort // guarded by mu
	confErr  error            // guarded by mu
	confAt   time.Time        // guarded by mu
	confPath string           // for tests; empty: /etc/resolv.conf
}

const hostFresh = time.Second

// addrs returns the host's own addresses.
func (h *hostView) addrs() ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.ownAt.IsZero() || now.Sub(h.ownAt) > hostFresh {
		list := h.list
		if list == nil {
			list = interfaceAddrs
		}
		h.own, h.ownErr = list()
		h.ownAt = now
	}
	return h.own, h.ownErr
}

func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}

// dnsServers returns the servers to ask, at least one if err is nil.
func (h *hostView) dnsServers() ([]netip.AddrPort, error) {
	if len(h.resolvers) > 0 {
		return h.resolvers, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.confAt.IsZero() || now.Sub(h.confAt) > hostFresh {
		path := h.confPath
		if path == "" {
			path = "/etc/resolv.conf"
		}
		h.conf, h.confErr = readResolvConf(path)
		h.confAt = now
	}
	return h.conf, h.confErr
}

func readResolvConf(path string) ([]netip.AddrPort, error) {
	conf, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	port, err := strconv.ParseUint(conf.Port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("read %s: port %q", path, conf.Port)
	}
	var out []netip.AddrPort
	for _, s := range conf.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.AddrPortFrom(a, uint16(port)))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s names no server", path)
	}
	return out, nil
}
