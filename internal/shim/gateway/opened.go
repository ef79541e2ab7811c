package gateway

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// opened is a connection out of the sandbox, as long as it is open.
type opened struct {
	g    *Gateway
	from source
	to   netip.AddrPort
	said atomic.Pointer[string] // the canonical name that a TLS handshake has said; nil: none
	end  func()                 // ends it, from any goroutine, more than once
}

// opened notes a connection. One that a policy which came meanwhile does not allow
// is ended at once.
func (g *Gateway) opened(from source, to netip.AddrPort, end func()) *opened {
	o := &opened{g: g, from: from, to: to, end: end}
	g.mu.Lock()
	if g.open == nil {
		g.open = make(map[*opened]struct{})
	}
	g.open[o] = struct{}{}
	g.mu.Unlock()
	o.recheck()
	return o
}

func (o *opened) close() {
	o.g.mu.Lock()
	defer o.g.mu.Unlock()
	delete(o.g.open, o)
}

// recheck ends the connection if it is not allowed, or no more.
func (o *opened) recheck() {
	d := o.g.decide(o.to, o.from.proto)
	if d.Allow && len(d.Names) > 0 {
		if said := o.said.Load(); said != nil {
			d = o.g.policy.Load().Speak(*said, o.to.Port(), d.Names)
		}
	}
	if !d.Allow {
		o.end()
		o.g.refuse(source{proto: o.from.proto}, o.to, d) // the socket is gone
	}
}

// SetPolicy replaces the policy. Connections that it does not allow are ended
// before it returns. Before Start it is the same as setting Policy.
func (g *Gateway) SetPolicy(p policy.Policy) {
	g.policy.Store(&p)
	g.mu.Lock()
	open := slices.Collect(maps.Keys(g.open))
	g.mu.Unlock()
	for _, o := range open {
		o.recheck()
	}
}
