package shim

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// If a sandbox uses more memory than its cgroup has, the host's kernel kills the whole
// sandbox. Before that, the guest should end the largest process. The kernel also counts
// gVisor's own memory. So the shim watches the memory, and not the guest.

// The less memory is free, the sooner the shim looks again: nothing fills more than
// fastestFill bytes in a second.
const (
	fastestFill = 4 << 30
	shortLook   = 2 * time.Millisecond
	longLook    = time.Second
	// reliefLimit bounds the guest's part, and settleLimit the wait for the memory of a
	// process that has ended.
	reliefLimit = 5 * time.Second
	settleLimit = 500 * time.Millisecond
)

// nextLook is how long to wait when so much is free.
func nextLook(free int64) time.Duration {
	return min(max(time.Duration(float64(free)/fastestFill*float64(time.Second)), shortLook), longLook)
}

// A memoryWatch keeps the sandbox within its limit of memory. From start to close its
// goroutine looks at the used memory. It asks the guest to end a process before the
// kernel would end the sandbox. While a sandbox is being saved it may use more (see
// raise).
type memoryWatch struct {
	folder folder
	record *record
	moves  *moves
	log    *slog.Logger

	limited chan struct{} // has a value when the memory may have another limit
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex         // guards the following
	raised    bool               // the sandbox may use more than its limit, to be saved
	short     bool               // it wants memory, and none was made free yet
	relieving context.CancelFunc // gives up what the guest was asked for; nil: nothing
}

// start begins the watch. A sandbox without cgroups of its own needs none.
func (w *memoryWatch) start(guest *guestClient) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.running.Go(func() { w.watch(ctx, guest) })
}

// close ends the watch, if it was started, and waits for that.
func (w *memoryWatch) close() {
	if w.cancel != nil {
		w.cancel()
	}
	w.running.Wait()
}

// changed has the watch look at a limit that is new.
func (w *memoryWatch) changed() {
	select {
	case w.limited <- struct{}{}:
	default: // it has not heard of the last one
	}
}

// isShort reports whether the sandbox wants memory that it did not get.
func (w *memoryWatch) isShort() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.short
}

// watch has the guest end a process each time the sandbox has almost used up its
// memory, until ctx ends.
func (w *memoryWatch) watch(ctx context.Context, guest *guestClient) {
	log := newEventLog(w.folder.path, MemoryLog)
	var g memoryGroup
	var container string
	for pause := shortLook; ; {
		select {
		case <-time.After(pause):
		case <-w.limited:
		case <-ctx.Done():
			return
		}
		st := w.record.get()
		if st.MemoryLimit == 0 {
			w.setShort(false)
			container, pause = "", shortLook
			select {
			case <-w.limited:
			case <-ctx.Done():
			}
			continue
		}
		if st.Container != container || g.limit != st.MemoryLimit { // a checkpoint has moved it, or setLimits
			container, g = st.Container, openMemoryGroup(st.cgroup(), st.MemoryLimit)
		}
		m, err := g.read()
		switch {
		case w.isRaised():
			g.held, pause = false, longLook/100
		case err != nil: // its group may be on its way
			container, pause = "", longLook/10
		case m.free() > 0:
			w.setShort(false)
			pause = nextLook(m.free())
			if !w.hold(&g) {
				pause = shortLook
			}
			if free, limited := serverFree(st); limited && free > 0 {
				pause = min(pause, max(nextLook(free), crowdedLook))
			} else if limited {
				pause = min(pause, w.relieveServer(ctx, guest, log))
			}
		default:
			pause = w.relieve(ctx, guest, &g, log)
		}
	}
}

// hold is memoryGroup.hold, but not during a checkpoint, which needs memory of the
// sandbox's own. It reports false if the caller should try again at once.
func (w *memoryWatch) hold(g *memoryGroup) bool {
	if !g.v1 || g.held {
		return true
	}
	if !w.moves.turn.TryLock() {
		return false
	}
	defer w.moves.turn.Unlock()
	if w.outdated(g) {
		return false
	}
	g.hold()
	return true
}

// outdated reports whether the sandbox has another limit than when g was opened. If the caller
// holds moves.turn, the limit does not change afterwards.
func (w *memoryWatch) outdated(g *memoryGroup) bool { return w.record.get().MemoryLimit != g.limit }

// relieve has the guest end its largest process, and waits until that has made room.
// It returns when to look again.
func (w *memoryWatch) relieve(ctx context.Context, guest *guestClient, g *memoryGroup, log eventLog) (pause time.Duration) {
	if w.moves.shortly(ctx, func() { pause = w.relieveInTurn(ctx, guest, g, log) }) {
		return pause
	}
	if !w.isRaised() && !w.outdated(g) {
		g.release()
	}
	return longLook / 10
}

// relieveInTurn is relieve. moves.turn is held.
func (w *memoryWatch) relieveInTurn(ctx context.Context, guest *guestClient, g *memoryGroup, log eventLog) time.Duration {
	if w.outdated(g) { // the sandbox may have more now, and no process must end
		return shortLook
	}
	st := w.record.get()
	m, err := g.read()
	if st.Paused || err != nil || m.free() > 0 {
		return longLook / 10
	}
	w.setShort(true)
	asking, asked := context.WithTimeout(ctx, reliefLimit)
	defer asked()
	w.setRelieving(asked)
	defer w.setRelieving(nil)
	if !alive(st.PID, st.StartTime) {
		return longLook / 10
	}
	var widened sync.WaitGroup
	if g.held {
		widened.Go(func() { g.widen(asking.Done()) })
	}
	kill, err := askForRelief(asking, guest, m.limit)
	asked()
	widened.Wait()
	if err != nil {
		g.release()
		w.log.Warn("the sandbox is almost out of memory, and no process of it could be ended", "used", m.used, "limit", m.limit, "err", err)
		return longLook / 4
	}
	w.setShort(false)
	kill.Time, kill.LimitBytes = time.Now().UTC(), m.limit
	log.write(kill)
	w.log.Warn("the sandbox was almost out of memory, and a process of it was ended", "used", m.used, "limit", m.limit, "name", kill.Name, "pid", kill.PID, "bytes", kill.ResidentBytes)
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline) && ctx.Err() == nil; {
		if m, err := g.read(); err != nil || m.free() > 0 {
			break
		}
		time.Sleep(shortLook)
	}
	g.held = false // it may have been widened
	return shortLook
}

// setRelieving notes what gives up a call of the guest for memory.
func (w *memoryWatch) setRelieving(cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relieving = cancel
}

// giveUp has relieve wait no longer for a guest that is ending, or has ended.
func (w *memoryWatch) giveUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.relieving != nil {
		w.relieving()
	}
}

// setShort notes whether memory is wanted: the sandbox may end for that reason.
func (w *memoryWatch) setShort(short bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.short = short
}

// raise lets a paused sandbox use more than its limit. If it writes its memory to a file
// in memory, or to a disk's cache, that counts as its own memory. So does the memory that
// gVisor needs for the write. The next sandbox has the limit from its start. The caller
// holds moves.turn.
func (w *memoryWatch) raise(st State) { w.limit(st, true, 2*st.MemoryLimit+saveReserve) }

// saveReserve is what gVisor may need to save the memory of a small sandbox.
const saveReserve = 64 << 20

// lower undoes raise, once the written memory is gone.
func (w *memoryWatch) lower(st State) {
	if now := w.record.get(); now.Container == st.Container {
		st.MemoryLimit = now.MemoryLimit
	}
	w.limit(st, false, st.MemoryLimit)
}

// limit gives the sandbox this limit, and notes whether that is a raised one. If so much was noted
// before, it changes nothing.
func (w *memoryWatch) limit(st State, raised bool, limit int64) {
	w.mu.Lock()
	was := w.raised
	w.raised = raised
	w.mu.Unlock()
	if !enforced(st, "memory") || st.MemoryLimit == 0 || was == raised || w.record.get().Container != st.Container {
		return // the limit of a sandbox that has ended does not matter
	}
	g := openMemoryGroup(st.cgroup(), st.MemoryLimit)
	if err := g.setLimit(limit); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.log.Warn("change the sandbox's memory limit to save the sandbox", "limit", limit, "err", err)
	}
}

// isRaised reports whether the sandbox may use more than its limit.
func (w *memoryWatch) isRaised() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.raised
}

// askForRelief has the guest end its largest process, and returns which it was, as the
// guest says.
func askForRelief(ctx context.Context, guest *guestClient, limit int64) (kill sprites.MemoryKill, err error) {
	err = guest.call(ctx, http.MethodPost, "/v1/memory/relief?limit="+strconv.FormatInt(limit, 10), func(r io.Reader) (err error) {
		kill, err = readMemoryKill(r)
		return err
	})
	return kill, err
}

// readMemoryKill reads a guest's answer, which may be hostile.
func readMemoryKill(r io.Reader) (sprites.MemoryKill, error) {
	k, err := answered[sprites.MemoryKill](r, maxOwnerAnswer)
	if err != nil {
		return k, err
	}
	if k.Name, err = process(k.PID, k.Name); err == nil && k.ResidentBytes < 0 {
		err = errors.New("the guest names a process with negative memory")
	}
	k.Session = processName(k.Session)
	return k, err
}
