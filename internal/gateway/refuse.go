package gateway

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/policy"
)

// Event is one refusal.
type Event struct {
	Time  time.Time
	Proto string     // "tcp", "udp", or "dns" for a name
	Addr  netip.Addr // the zero Addr for a name
	Port  uint16
	Name  string // the name refused, or under which the sandbox last looked the address up; or empty
	Rule  string // what refused it
	Hint  string // what to do about it, in one line

	// Suppressed counts the refusals before this one that nobody was told of,
	// because there were too many of them.
	Suppressed int
}

// A flood of refusals costs the sandbox, not the log: after eventBurst of them,
// eventRate a second are told.
const (
	eventRate  = 20
	eventBurst = 200
)

type refusals struct {
	eventMu    sync.Mutex // also keeps events one at a time
	tokens     float64    // guarded by eventMu
	refilled   time.Time  // guarded by eventMu
	suppressed int        // guarded by eventMu
}

// refuse reports a refused address.
func (g *Gateway) refuse(to netip.AddrPort, proto policy.Proto, d policy.Decision) {
	g.report(Event{
		Proto: string(proto), Addr: to.Addr(), Port: to.Port(), Name: g.names.get(to.Addr()),
		Rule: d.Rule, Hint: d.Hint,
	})
}

// refuseName reports a refused lookup.
func (g *Gateway) refuseName(name string, d policy.Decision) {
	g.report(Event{Proto: "dns", Name: name, Rule: d.Rule, Hint: d.Hint})
}

func (g *Gateway) report(e Event) {
	g.eventMu.Lock()
	defer g.eventMu.Unlock()
	e.Time = time.Now()
	if g.refilled.IsZero() {
		g.tokens = eventBurst
	} else {
		g.tokens = min(eventBurst, g.tokens+eventRate*e.Time.Sub(g.refilled).Seconds())
	}
	g.refilled = e.Time
	if g.tokens < 1 {
		g.suppressed++
		return
	}
	g.tokens--
	e.Suppressed, g.suppressed = g.suppressed, 0
	g.Logger.Info("refused", "proto", e.Proto, "address", e.Addr, "port", e.Port, "name", e.Name,
		"rule", e.Rule, "hint", e.Hint, "suppressed", e.Suppressed)
	if g.OnRefused != nil {
		g.OnRefused(e)
	}
}

// nameCache remembers under which name an address was last looked up, for the
// reports only. The zero value is ready to use.
type nameCache struct {
	mu    sync.Mutex
	names map[netip.Addr]string // guarded by mu
}

const maxNames = 4096

func (c *nameCache) put(a netip.Addr, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names == nil {
		c.names = make(map[netip.Addr]string)
	}
	if _, ok := c.names[a]; !ok && len(c.names) >= maxNames {
		for old := range c.names { // any one
			delete(c.names, old)
			break
		}
	}
	c.names[a] = name
}

func (c *nameCache) get(a netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[a]
}
