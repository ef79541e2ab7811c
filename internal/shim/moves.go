package shim

import (
	"context"
	"sync"
	"time"
)

// moves let one thing at a time move, pause or save the sandbox, and nothing once the
// sandbox must end. They know why it ends, if the shim is the cause.
type moves struct {
	turn    sync.Mutex // held by what moves the sandbox, or changes or frees its memory
	refused string     // the layer that the sandbox must not be moved to; turn guards it

	mu       sync.Mutex         // guards the following, each time for a moment; a holder does not wait for turn
	breakOff context.CancelFunc // gives up what has the turn; nil: nothing, or what takes a moment
	end      fate
	over     bool // the sandbox has ended, and nothing begins any more that would note a state
}

// A fate is why a sandbox ends.
type fate struct {
	stopping   bool  // the end was asked for
	hibernated bool  // it was to sleep
	failed     error // why a move has ended it; nil: none has
}

// run calls f while nothing else moves, pauses or saves the sandbox. Once begun, f goes on
// even if no caller waits for it. Only a stop that is done waiting ends f's ctx.
func (m *moves) run(ctx context.Context, f func(context.Context) error) error {
	m.turn.Lock()
	defer m.turn.Unlock()
	if err := ctx.Err(); err != nil {
		return err // nobody waits for it any more
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if !m.setBreakOff(cancel) {
		return ErrEnded
	}
	defer m.setBreakOff(nil)
	return f(ctx)
}

// setBreakOff notes the function that gives up the thing that has the turn. It reports
// false if the sandbox must end, or has ended.
func (m *moves) setBreakOff(cancel context.CancelFunc) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breakOff = cancel
	return !m.end.stopping && !m.over
}

// within calls f when it is its turn. It reports false, and calls nothing, if something else has
// the turn for longer than limit. It tries again at once when ended is closed, and every 5 ms.
func (m *moves) within(limit time.Duration, ended <-chan struct{}, f func()) bool {
	for deadline := time.Now().Add(limit); !m.turn.TryLock(); {
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ended:
			ended = nil // once: it stays closed
		}
	}
	defer m.turn.Unlock()
	f()
	return true
}

// shortly calls f when it has the turn. If something else keeps the turn for 50 ms, such as
// a checkpoint, it reports false and does not call f. A request for the status has the turn
// only for a moment.
func (m *moves) shortly(ctx context.Context, f func()) bool {
	for deadline := time.Now().Add(50 * time.Millisecond); !m.turn.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return false
		}
	}
	defer m.turn.Unlock()
	f()
	return true
}

// stop notes that the sandbox is to end, and returns what gives up the thing that has the turn.
func (m *moves) stop() (breakOff context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end.stopping = true
	return m.breakOff
}

// sleep notes that the sandbox is to end because its memory was saved.
func (m *moves) sleep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end.stopping, m.end.hibernated = true, true
}

// fail notes why a move ends the sandbox.
func (m *moves) fail(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end.failed = why
}

// fate is what is known of the sandbox's end by now.
func (m *moves) fate() fate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end
}

// noteEnd waits for the turn. Then it asks ended whether the process that has ended was the
// sandbox's, and not that of the generation before. If so, no move begins any more. A move
// would note a state that says that the sandbox has its disk, and no shim would look after
// that sandbox.
func (m *moves) noteEnd(ended func() bool) bool {
	m.turn.Lock()
	defer m.turn.Unlock()
	over := ended()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = over
	return over
}
