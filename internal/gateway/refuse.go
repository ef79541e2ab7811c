package gateway

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/policy"
)

// Event is one refusal, or one connection.
type Event struct {
	Time    time.Time
	Allowed bool
	Proto   string     // "tcp", "udp", or "dns" for a name
	Addr    netip.Addr // the zero Addr for a name
	Port    uint16
	Name    string // the name refused or said, or under which the sandbox last looked the address up; or empty
	Rule    string // what decided
	Hint    string // of a refusal: what to do about it, in one line

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
	g.refuseSaid(to, proto, g.pins.latest(policy.Canonical(to.Addr())), d)
}

// refuseSaid reports an address refused for a name that was said there.
func (g *Gateway) refuseSaid(to netip.AddrPort, proto policy.Proto, name string, d policy.Decision) {
	g.report(Event{Proto: string(proto), Addr: to.Addr(), Port: to.Port(), Name: name, Rule: d.Rule, Hint: d.Hint})
}

// allowed reports a connection.
func (g *Gateway) allowed(to netip.AddrPort, proto policy.Proto, d policy.Decision) {
	if g.OnEvent == nil {
		return
	}
	e := Event{Time: time.Now(), Allowed: true, Proto: string(proto), Addr: to.Addr(), Port: to.Port(), Rule: d.Rule}
	if len(d.Names) > 0 {
		e.Name = d.Names[0]
	} else {
		e.Name = g.pins.latest(policy.Canonical(to.Addr()))
	}
	g.eventMu.Lock()
	defer g.eventMu.Unlock()
	g.OnEvent(e)
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
	if g.OnEvent != nil {
		g.OnEvent(e)
	}
}
