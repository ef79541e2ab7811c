package supervise

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long a program of the preparation may take to end after SIGTERM. Then it is
// killed, with all that it has started.
const stopGrace = 3 * time.Second

// errorLines is how much of what a step has printed is in its error.
const errorLines = 20

// overtime is the cause of a context whose step has taken longer than it may.
type overtime struct{ limit time.Duration }

func (e overtime) Error() string { return fmt.Sprintf("took longer than the %v that it has", e.limit) }

// stepBound marks the contexts of limitRunning: no call of git has another limit in them.
type stepBound struct{}

// limitTick is how often limitRunning checks whether a step's time is up.
const limitTick = 200 * time.Millisecond

// limitRunning returns a context that ends with ctx, or when the sprite was awake for as long
// as limit says. The caller must call stop, which waits.
func limitRunning(ctx context.Context, limit time.Duration) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, stepBound{}, true))
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(limitTick)
		defer tick.Stop()
		clock := runningClock{last: time.Now()}
		for ran := time.Duration(0); ran < limit; ran += clock.tick(time.Now()) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(overtime{limit})
	}()
	return ctx, func() { cancel(context.Canceled); <-over }
}

// endGroup sends SIGTERM to a process group, and kills the group if its leader has not ended
// after stopGrace. over must be closed when the leader has ended.
func endGroup(leader int, over <-chan struct{}) {
	_ = syscall.Kill(-leader, syscall.SIGTERM) // gone already, at worst
	select {
	case <-over:
	case <-time.After(stopGrace):
		_ = syscall.Kill(-leader, syscall.SIGKILL)
		_ = syscall.Kill(leader, syscall.SIGKILL) // it may have left its group
		<-over
	}
}

// lastLines is the end of a step's output.
func lastLines(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-errorLines):], "\n")
}
