package guest

import (
	"sync"
	"time"
)

// A guard calls a function after a time of running. When a sandbox wakes, its clocks are ahead
// by the sleep, which must not count. So the guard counts in steps, and counts no step for
// more than its length and guardSlack.
type guard struct {
	mu    sync.Mutex
	timer *time.Timer
	left  time.Duration
	since time.Time
	step  time.Duration
	fire  func()
}

// guardStep is the longest step. A sleep costs one guardSlack at most.
const (
	guardStep  = 5 * time.Second
	guardSlack = time.Second
)

// start calls fire, in a goroutine of its own, after d of running, unless stop or
// another start comes first.
func (g *guard) start(d time.Duration, fire func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
	}
	g.left, g.fire = d, fire
	g.next()
}

func (g *guard) next() {
	g.step = min(g.left, guardStep)
	g.since = time.Now()
	var timer *time.Timer
	timer = time.AfterFunc(g.step, func() { g.tick(&timer) })
	g.timer = timer
}

// tick is called with the address of the timer that called it, which stop or
// start may have replaced meanwhile.
func (g *guard) tick(timer **time.Timer) {
	g.mu.Lock()
	if g.timer == nil || g.timer != *timer {
		g.mu.Unlock()
		return
	}
	g.left -= min(time.Since(g.since), g.step+guardSlack)
	if g.left > 0 {
		g.next()
		g.mu.Unlock()
		return
	}
	g.timer = nil
	fire := g.fire
	g.mu.Unlock()
	fire()
}

func (g *guard) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}
