package gateway

import (
	"golang.org/x/time/rate"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// limiter is policy.Limits in force.
type limiter struct {
	out, in *rate.Limiter // bytes; nil: no limit
	conns   *rate.Limiter // nil: no limit
}

// SetLimits replaces the limits, for open connections too.
func (g *Gateway) SetLimits(l policy.Limits) {
	var in limiter
	if l.BytesPerSecond > 0 {
		// A second's worth may come at once, and a whole piece must.
		burst := max(int(min(l.BytesPerSecond, 1<<30)), 256<<10)
		in.out, in.in = rate.NewLimiter(rate.Limit(l.BytesPerSecond), burst), rate.NewLimiter(rate.Limit(l.BytesPerSecond), burst)
	}
	if l.ConnsPerSecond > 0 {
		in.conns = rate.NewLimiter(rate.Limit(l.ConnsPerSecond), int(min(l.ConnsPerSecond, 1<<20)))
	}
	g.limits.Store(&in)
}

// pace waits until n bytes more may pass out of the sandbox, or into it.
func (g *Gateway) pace(out bool, n int) error {
	l := g.limits.Load()
	if l == nil {
		return nil
	}
	lim := l.in
	if out {
		lim = l.out
	}
	if lim == nil {
		return nil
	}
	return lim.WaitN(g.ctx, n)
}
