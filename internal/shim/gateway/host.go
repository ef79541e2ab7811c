package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/cove-dev/cove/internal/shim/hostnet"
)

// hostView is what the gateway must know of the machine that it runs on. Both
// answers may change while it runs (a laptop joins a network), so they are asked
// again when they are older than hostFresh.
type hostView struct {
	list      func() (hostnet.Net, error) // nil: this machine's
	resolvers []netip.AddrPort            // none: those of resolv.conf

	mu       sync.Mutex
	own      hostnet.Net      // guarded by mu
	ownErr   error            // guarded by mu
	ownAt    time.Time        // guarded by mu
	conf     []netip.AddrPort // guarded by mu
	confErr  error            // guarded by mu
	confAt   time.Time        // guarded by mu
	confPath string           // for tests; empty: /etc/resolv.conf
	four     bool             // there is a route for IPv4; guarded by mu
	six      bool             // there is a route for IPv6; guarded by mu
	routesAt time.Time        // guarded by mu
}

const (
	hostFresh   = time.Second
	routesFresh = 3 * time.Second
)

// net returns the host's own addresses, and its neighbours'.
func (h *hostView) net() (hostnet.Net, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.ownAt.IsZero() || now.Sub(h.ownAt) > hostFresh {
		list := h.list
		if list == nil {
			list = hostnet.Read
		}
		h.own, h.ownErr = list()
		h.ownAt = now
	}
	return h.own, h.ownErr
}

// routes reports for which protocols the host has a route to the internet.
func (h *hostView) routes() (four, six bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.routesAt.IsZero() || now.Sub(h.routesAt) > routesFresh {
		h.four, h.six = leads("udp4", "192.0.1.1:9"), leads("udp6", "[2000::1]:9")
		h.routesAt = now
	}
	return h.four, h.six
}

// leads reports whether the host has a route to an address, by a socket on which
// nothing is sent.
func leads(network, to string) bool {
	c, err := net.Dial(network, to)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
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
