package gateway

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// pins remember the names that addresses were given to the sandbox for. The sandbox
// may connect to an address under a name that it has looked up at the gateway. The
// zero value is ready to use.
type pins struct {
	mu    sync.Mutex
	addrs map[netip.Addr]map[string]pin // guarded by mu
	n     int                           // guarded by mu
}

const (
	maxPins  = 16384
	pinLeast = time.Hour // programs keep answers for longer than they should
)

// pin is when a name was last answered by an address, and until when that counts.
type pin struct{ at, until time.Time }

// put notes that a canonical name was answered by an address.
func (p *pins) put(a netip.Addr, name string, ttl time.Duration) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addrs == nil {
		p.addrs = make(map[netip.Addr]map[string]pin)
	}
	names := p.addrs[a]
	if names == nil {
		names = make(map[string]pin)
		p.addrs[a] = names
	}
	if _, ok := names[name]; !ok {
		if p.n >= maxPins {
			p.drop(a)
		}
		p.n++
	}
	names[name] = pin{now, now.Add(max(ttl, pinLeast))}
}

// drop makes room by removing expired pins. If there are none, it removes the pins of
// some other address, and those of keep only if there is no other. The caller holds
// mu.
func (p *pins) drop(keep netip.Addr) {
	now, before := time.Now(), p.n
	for a, names := range p.addrs {
		maps.DeleteFunc(names, func(_ string, answer pin) bool {
			gone := answer.until.Before(now)
			if gone {
				p.n--
			}
			return gone
		})
		if len(names) == 0 && a != keep {
			delete(p.addrs, a)
		}
	}
	for a, names := range p.addrs { // any one
		if p.n < before {
			return
		}
		if a != keep {
			p.n -= len(names)
			delete(p.addrs, a)
		}
	}
	if p.n == before { // all pins are of keep
		p.n -= len(p.addrs[keep])
		clear(p.addrs[keep])
	}
}

// names are those under which an address may be reached, the one looked up last first.
func (p *pins) names(a netip.Addr) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	names := p.addrs[a]
	out := make([]string, 0, len(names))
	for name, pin := range names {
		if pin.until.After(now) {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(x, y string) int { return names[y].at.Compare(names[x].at) })
	return out
}

// latest is the name under which an address was last looked up, or "".
func (p *pins) latest(a netip.Addr) string {
	if names := p.names(a); len(names) > 0 {
		return names[0]
	}
	return ""
}
