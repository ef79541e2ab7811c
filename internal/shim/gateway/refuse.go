package gateway

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// Event is one refusal, or one connection.
type Event struct {
	Time    time.Time
	Allowed bool
	Proto   string     // "tcp", "udp", or "dns" for a name
	Addr    netip.Addr // the zero Addr for a name
	Port    uint16
	Name    string // the name refused or said, or the last one that the sandbox looked the address up under; or empty
	Rule    string // the rule or range that decided
	Hint    string // of a refusal: what to do about it, in one line
	Opens   string // of a refusal: the rule that would allow it; empty: none would

	// Process is the refused process, as the sandbox says. PID 0: not known.
	Process Process

	// Suppressed counts the refusals before this one that were not reported, because
	// there were too many.
	Suppressed int
}

// A flood of refusals must not fill the log: after eventBurst refusals, eventRate a
// second are reported.
const (
	eventRate  = 20
	eventBurst = 200
)

type refusals struct {
	eventMu    sync.Mutex // also keeps events one at a time
	tokens     float64    // guarded by eventMu
	refilled   time.Time  // guarded by eventMu
	suppressed int        // guarded by eventMu

	asks  *rate.Limiter // bounds asking the guest which process was refused
	asked chan struct{} // a place for each question on its way
}

// Process is a process in the sandbox.
type Process struct {
	Name string
	PID  int
}

// source is where in the sandbox something comes from. The zero Addr: not known.
type source struct {
	proto policy.Proto
	addr  netip.AddrPort
}

// Bounds on asking the guest for the process of a refused connection: after a burst of
// ownerBurst, ownerRate a second, and ownerAsked at a time. The gateway waits
// ownerWait for an answer.
const (
	ownerRate  = 2
	ownerBurst = 20
	ownerAsked = 4
	ownerWait  = 200 * time.Millisecond
)

// refuse reports a refused address. It may take ownerWait. Call it before the
// connection is answered: then the socket is gone, and the guest can't find its
// process.
func (g *Gateway) refuse(from source, to netip.AddrPort, d policy.Decision) {
	g.refuseSaid(from, to, cmp.Or(d.Name, g.pins.latest(policy.Canonical(to.Addr()))), d)
}

// refuseSaid reports an address refused for a name that was said there.
func (g *Gateway) refuseSaid(from source, to netip.AddrPort, name string, d policy.Decision) {
	e := Event{Proto: string(from.proto), Addr: to.Addr(), Port: to.Port(), Name: name, Rule: d.Rule, Hint: g.hint(d), Opens: d.Opens}
	if g.mayAskOwner(from) {
		e.Process = g.owner(from)
	}
	g.report(e)
}

// refuseDatagram is refuse for a caller that must not wait. Sockets without a
// connection are not gone so soon.
func (g *Gateway) refuseDatagram(from source, to netip.AddrPort, d policy.Decision) {
	e := Event{Proto: string(from.proto), Addr: to.Addr(), Port: to.Port(), Name: cmp.Or(d.Name, g.pins.latest(policy.Canonical(to.Addr()))), Rule: d.Rule, Hint: g.hint(d), Opens: d.Opens}
	if !g.mayAskOwner(from) {
		g.report(e)
		return
	}
	if !g.enter() {
		<-g.asked
		return
	}
	go func() {
		defer g.wg.Done()
		e.Process = g.owner(from)
		g.report(e)
	}()
}

// hint is what to do about a refusal, for the gateway's own sprite.
func (g *Gateway) hint(d policy.Decision) string {
	if g.Name == nil {
		return d.Hint
	}
	return d.For(g.Name()).Hint
}

// mayAskOwner reports whether the sandbox may be asked now; then owner must be called.
func (g *Gateway) mayAskOwner(from source) bool {
	if g.Owner == nil || !from.addr.IsValid() {
		return false
	}
	select {
	case g.asked <- struct{}{}:
	default:
		return false
	}
	if !g.asks.Allow() {
		<-g.asked
		return false
	}
	return true
}

func (g *Gateway) owner(from source) Process {
	defer func() { <-g.asked }()
	ctx, cancel := context.WithTimeout(g.ctx, ownerWait)
	defer cancel()
	p, err := g.Owner(ctx, from.proto, from.addr)
	if err != nil {
		g.Logger.Debug("ask the sandbox whose socket it is", "from", from.addr, "error", err)
		return Process{}
	}
	return p
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
func (g *Gateway) refuseName(from source, name string, d policy.Decision) {
	e := Event{Proto: "dns", Name: name, Rule: d.Rule, Hint: g.hint(d), Opens: d.Opens}
	if g.mayAskOwner(from) {
		e.Process = g.owner(from)
	}
	g.report(e)
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
