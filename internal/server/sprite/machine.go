package sprite

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// machine is the part of a sprite that is in memory only: its sandbox, who uses the sandbox,
// and the transition that is under way. It exists from the first use of the sprite until the
// sprite is deleted.
//
// Only its own methods, and those of a Lease, change it. None of them waits for anything. If a
// method begins a transition, the machine is busy, and no other transition begins. The caller
// must end the transition with finish, endStage or endEnd.
type machine struct {
	id     string
	name   string
	tasks  *tasks
	places *places
	idle   func(m *machine, epoch int) // called when nothing has used it for long enough
	disk   *diskGauge                  // which has a lock of its own

	mu      sync.Mutex
	counted bool            // it has a place
	left    bool            // it is in no map any more, and takes no place
	sandbox Sandbox         // live, or nil
	paused  bool            // it is, if there is one
	told    int64           // network.changes that its guest has heard of, if it is paused
	ending  Sandbox         // the last one that was told to end
	undone  Sandbox         // the last one that a restore has ended
	leases  map[*Lease]bool // held, or waiting for the sandbox
	wokenBy string          // the lease that began its last start; empty: none
	sleep   sleepTimer      // runs while the sandbox is live and unused
	busy    *transition     // the sandbox is starting or ending
	spare   Sandbox         // of the pool, to be the one that starts; nil: none
	dead    bool            // being deleted: nothing may use it
	lost    string          // why what ran in it is gone, until a command was told; empty: it is not
	hold    hold            // why nothing may run in it
}

func newMachine(row store.Sprite) *machine {
	m := &machine{id: row.ID, name: row.Name, leases: map[*Lease]bool{}, lost: row.Lost, disk: &diskGauge{limit: row.Config.DiskLimit()}}
	if row.Held != nil {
		m.hold.why = new(*row.Held)
	}
	return m
}

// transition is a sandbox's start or end, which its waiters share.
type transition struct {
	done  chan struct{}
	err   error // of the start; valid once done is closed
	begun time.Time

	given  context.Context // ends when it is to be given up
	giveUp context.CancelFunc
	alone  bool // it changes the disk: only a delete gives that up
}

func newTransition() *transition {
	t := &transition{done: make(chan struct{}), begun: time.Now()}
	t.given, t.giveUp = context.WithCancel(context.Background())
	return t
}

// wait waits for the transition's end, and returns its error.
func (t *transition) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// step says which transition a method of a machine has begun. The caller must do it.
type step int

const (
	nothing step = iota
	boots
	resumes
	pauses
	ends
)

// sleepTimer waits until a machine is to sleep, or, if it is paused, to hibernate. The
// machine's lock guards it.
type sleepTimer struct {
	times
	timer *time.Timer // nil: it does not run
	epoch int         // counts timers and their ends, so that a late one knows that it is
}

// stop ends the wait.
func (t *sleepTimer) stop() {
	t.epoch++
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// start begins the wait anew.
func (t *sleepTimer) start(wait time.Duration, over func(epoch int)) {
	t.stop()
	epoch := t.epoch
	t.timer = time.AfterFunc(wait, func() { over(epoch) })
}

// wait is for how long a machine must be unused until its next stage of sleep; 0: for ever.
func (t *sleepTimer) wait(paused bool) time.Duration {
	switch {
	case !paused || t.idle == 0:
		return t.idle
	case t.hibernate > 0:
		return max(t.hibernate-t.idle, time.Second)
	}
	return 0
}

// pauses reports whether a machine is paused before it is hibernated.
func (t *sleepTimer) pauses() bool { return t.hibernate == 0 || t.hibernate > t.idle }

// hold is why nothing may run in a machine. The machine's lock guards it.
type hold struct {
	why  *sprites.Held // nil: it may
	news chan struct{} // closed when why becomes another
}

// set replaces the reason, and tells who waits for that.
func (h *hold) set(why *sprites.Held) {
	h.why = why
	if h.news != nil {
		close(h.news)
		h.news = nil
	}
}

// stand notes the reason; of one that is there already, with other figures.
func (h *hold) stand(why sprites.Held) {
	if h.why != nil && h.why.Code == why.Code {
		why.Since = h.why.Since
		*h.why = why
		return
	}
	why.Since = time.Now().UTC()
	h.set(&why)
}

// machineState is what a machine was at one moment.
type machineState struct {
	sandbox Sandbox
	paused  bool
	told    int64
	ending  Sandbox
	undone  Sandbox
	busy    *transition
	dead    bool
	lost    string
	held    *sprites.Held
	epoch   int           // sleepTimer.epoch
	idle    time.Duration // how long it stays awake unused; 0: for ever
}

// live is the sandbox, or nil if it has ended.
func (s machineState) live() Sandbox {
	if s.sandbox == nil || ended(s.sandbox) {
		return nil
	}
	return s.sandbox
}

// runs reports whether programs in it may run now.
func (s machineState) runs() bool { return s.sandbox != nil && !s.paused }

// isFull reports whether it is held because of the reserve.
func (s machineState) isFull() bool { return isFull(s.held) }

func isFull(held *sprites.Held) bool { return held != nil && held.Code == CodeDiskFull }

func (m *machine) now() machineState {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := machineState{
		sandbox: m.sandbox, paused: m.paused, told: m.told, ending: m.ending, undone: m.undone, busy: m.busy,
		dead: m.dead, lost: m.lost, epoch: m.sleep.epoch, idle: m.sleep.idle,
	}
	if m.hold.why != nil {
		s.held = new(*m.hold.why)
	}
	return s
}

// changed brings the count of sprites that are awake up to date, after sandbox, paused or busy
// have changed. mu is held.
func (m *machine) changed() {
	awake := !m.left && (m.sandbox != nil && !m.paused || m.busy != nil)
	switch {
	case awake && !m.counted:
		m.places.add(1)
	case !awake && m.counted:
		m.places.add(-1)
	}
	m.counted = awake
}

// arm starts the wait for sleep if nothing uses the machine. mu is held.
func (m *machine) arm(wait time.Duration) {
	if len(m.leases) > 0 || m.sandbox == nil || m.busy != nil || m.dead || wait == 0 || m.tasks.isClosed() {
		return
	}
	m.sleep.start(wait, func(epoch int) { m.tasks.begin(func() { m.idle(m, epoch) }) })
}

// setTimes takes up changed times.
func (m *machine) setTimes(t times) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sleep.times != t {
		m.sleep.times = t
		m.sleep.stop()
		m.arm(m.sleep.wait(m.paused))
	}
}

// begin makes the machine busy. mu is held.
func (m *machine) begin() *transition {
	m.sleep.stop()
	m.busy = newTransition()
	m.changed()
	return m.busy
}

// take begins a transition that gives the machine and its disk to the caller alone. If the
// machine is busy, it returns the transition to wait for; the caller then calls again. If
// next is resumes, take has begun that transition instead, and the caller must do it.
func (m *machine) take(deleting bool) (busy *transition, next step, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.tasks.isClosed():
		return nil, nothing, errClosing()
	case deleting || m.dead:
		return nil, nothing, errDeleting(m.name)
	case m.busy != nil:
		return m.busy, nothing, nil
	case m.paused && m.hold.why == nil && !ended(m.sandbox): // what is done to it has to be said inside, too
		return m.begin(), resumes, nil
	}
	m.begin().alone = true
	return nil, nothing, nil
}

// stopping begins the end of the sandbox, and next is ends. If the machine is busy, it
// returns the transition to wait for; the caller then calls again. If there is no sandbox, it
// returns neither. If the sprite is to sleep, a machine that somebody uses is refused, unless
// whoever is true.
func (m *machine) stopping(sleep, whoever bool) (busy *transition, next step, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.tasks.isClosed():
		return nil, nothing, errClosing()
	case m.dead:
		return nil, nothing, errDeleting(m.name)
	case m.busy != nil:
		return m.busy, nothing, nil
	case m.sandbox == nil:
		return nil, nothing, nil
	case sleep && !whoever && len(m.leases) > 0 && m.hold.why == nil: // else nobody gets anything of it
		return nil, nothing, fail.Newf(CodeInUse, "end that first: cove session list -s "+m.name+"; cove session kill ID -s "+m.name+"; or let it sleep by itself", "sprite %s is in use (%s)", m.name, strings.Join(names(m.leases), ", "))
	}
	m.ending = m.sandbox
	m.begin()
	return nil, ends, nil
}

// fallAsleep begins the pause or the end of a sandbox, unless something has used it since the
// timer of that epoch was started. With a rest, it starts a timer for that instead. told is
// network.changes.
func (m *machine) fallAsleep(epoch int, rest time.Duration, told int64) step {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sleep.epoch != epoch || m.tasks.isClosed() {
		return nothing // used meanwhile
	}
	m.sleep.timer = nil
	if rest > 0 {
		m.arm(rest)
		return nothing
	}
	if _, ok := m.sandbox.(Pauser); ok && !m.paused && m.sleep.pauses() {
		m.begin()
		m.told = told
		return pauses
	}
	m.ending = m.sandbox
	m.begin()
	return ends
}

// finish ends a transition, after which the sandbox is what it was before; err is for those
// who wait.
func (m *machine) finish(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end().finish(err)
}

// end ends a transition, except for those who wait: the caller finishes it. mu is held.
func (m *machine) end() *transition {
	busy := m.busy
	m.busy = nil
	m.changed()
	m.arm(m.sleep.wait(m.paused))
	return busy
}

func (t *transition) finish(err error) {
	t.err = err
	close(t.done)
}

// begun returns what a boot begins with. spare is a sandbox of the pool, or nil. given
// ends when the boot must be given up.
func (m *machine) begun() (spare Sandbox, given context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	spare, m.spare = m.spare, nil
	return spare, m.busy.given
}

// set notes which sandbox there is now, while the machine is busy or being deleted; nil: none.
func (m *machine) set(sb Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sandbox, m.paused = sb, false
	m.changed()
}

// endStage ends the transition that pauses or resumes the sandbox. err is for those who wait.
func (m *machine) endStage(paused bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused && m.sandbox != nil
	m.end().finish(err)
}

// endEnd ends the transition that ends the sandbox; err says that the sandbox has not
// ended. The caller writes its notes, and then finishes busy for those who wait. The flag
// freed says that the machine was held because of the reserve, and no longer is.
func (m *machine) endEnd(err error) (busy *transition, freed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.ending = nil
		return m.end(), false
	}
	m.sandbox, m.paused, m.lost = nil, false, ""
	if freed = isFull(m.hold.why); freed { // it writes nothing now
		m.hold.set(nil)
	}
	return m.end(), freed
}

// ask notes that the caller ends the sandbox, and returns it. The caller has taken the machine,
// or deletes it. undo: it is for a restore.
func (m *machine) ask(undo bool) Sandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending = m.sandbox; undo {
		m.undone = m.sandbox
	}
	return m.sandbox
}

// interrupting is ask for a caller that has not taken the machine. It notes nothing unless the
// machine is busy, and returns that transition.
func (m *machine) interrupting() (busy *transition, sb Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy != nil && m.sandbox != nil {
		m.ending = m.sandbox
	}
	return m.busy, m.sandbox
}

// unasked takes back ask: the end of the sandbox, if it comes, was not that.
func (m *machine) unasked(sb Sandbox, undo bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending == sb {
		m.ending = nil
	}
	if undo && m.undone == sb {
		m.undone = nil
	}
}

// hasEnded notes that a sandbox has ended, and reports whether somebody had asked for that.
func (m *machine) hasEnded(sb Sandbox) (asked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sandbox == sb {
		m.sandbox, m.paused = nil, false
		m.changed()
		m.sleep.stop() // else it is the timer of a later one
	}
	return m.ending == sb
}

// found gives the machine a sandbox that runs already.
func (m *machine) found(sb Sandbox, paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sandbox, m.paused, m.told = sb, paused, -1
	m.changed()
	m.arm(m.sleep.wait(m.paused))
}

// assign begins a boot that takes a sandbox of the pool.
func (m *machine) assign(spare Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spare = spare
	m.begin()
}

// condemn makes it a machine that is being deleted, with its sandbox, or nil.
func (m *machine) condemn(sb Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sandbox, m.ending, m.dead = sb, sb, true
	m.changed()
}

// kill makes it a machine that is being deleted, unless it is so already.
func (m *machine) kill() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead || m.tasks.isClosed() {
		return false
	}
	m.dead = true
	m.sleep.stop()
	return true
}

// deleteFailed ends a delete that failed: the row says that it may only be deleted.
func (m *machine) deleteFailed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = false
}

// leave notes that it is in no map any more.
func (m *machine) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = true
	m.changed()
}

// lose notes why what ran in the machine is gone, for the next command.
func (m *machine) lose(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = why
}

func errDeleting(name string) error {
	return fail.Newf(CodeDeleting, "", "sprite %s is being deleted", name)
}
