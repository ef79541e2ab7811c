package guest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// keptEnded is how many ended sessions are remembered by their ids.
const keptEnded = 100

// Ended sessions are kept, within these bounds, for clients that come too late for the end.
const (
	keptSessions = 32
	keptOutput   = 4 << 20 // bytes, of all together
	keptFor      = 10 * time.Minute
)

type keptSession struct {
	*session
	until time.Time
}

// table finds sessions by their ids: those that run, and those that are kept after their end.
type table struct {
	max      int
	stopping atomic.Bool // set under mu: no session is registered any more

	mu       sync.Mutex
	running  map[string]*session
	leftover map[string]*session // ended, but with living background processes
	ended    []string            // ids of the last ended sessions, oldest first
	lastEnd  time.Time           // when the last of them did
	kept     []keptSession       // ended, for those who attach later, oldest first
}

// stop lets no further session register, and returns those that have processes.
func (t *table) stop() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping.Store(true)
	return t.living()
}

// all returns the sessions that run, or have background processes.
func (t *table) all() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.living()
}

// living is all. The caller must hold mu.
func (t *table) living() []*session {
	return slices.AppendSeq(slices.Collect(maps.Values(t.running)), maps.Values(t.leftover))
}

// listed returns the sessions that run.
func (t *table) listed() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.running))
}

// activity returns how many sessions run, and when the last one ended.
func (t *table) activity() (running int, lastEnd time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running), t.lastEnd
}

// register gives a session its id and puts it into the table.
func (t *table) register(sess *session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping.Load() {
		return fail.New("stopping", "The sprite is stopping.", "")
	}
	if len(t.running) >= t.max {
		return wire.Full("too_many_sessions", t.max, "%d commands are running already; end some.", len(t.running))
	}
	for {
		// Ids have a fixed length, and are decimal, like the process numbers that other
		// servers use.
		sess.id = strconv.Itoa(100_000_000 + rand.IntN(900_000_000))
		if t.running[sess.id] == nil && t.leftover[sess.id] == nil && !slices.Contains(t.ended, sess.id) {
			break
		}
	}
	t.running[sess.id] = sess
	return nil
}

// unregister removes a session that was never started.
func (t *table) unregister(sess *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, sess.id)
}

// finished moves a session whose main process has ended out of the list.
func (t *table) finished(sess *session) {
	if sess.service {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, sess.id)
	t.leftover[sess.id] = sess
	t.lastEnd = time.Now()
	t.ended = append(t.ended, sess.id)
	if len(t.ended) > keptEnded {
		t.ended = slices.Clone(t.ended[len(t.ended)-keptEnded:])
	}
	// A client that was there may have missed the end, if its connection broke just then.
	t.kept = append(t.kept, keptSession{sess, t.lastEnd.Add(keptFor)})
}

// trimKept forgets the oldest kept sessions if there are too many, or they hold too much
// output. It also forgets those that are too old.
func (t *table) trimKept() {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := 0
	for i, sess := range slices.Backward(t.kept) {
		sess.mu.Lock()
		held += sess.scroll.held()
		sess.mu.Unlock()
		if held > keptOutput || len(t.kept)-i > keptSessions || time.Now().After(sess.until) {
			t.kept = slices.Clone(t.kept[i+1:])
			return
		}
	}
}

// attachable finds a session that runs or is kept.
func (t *table) attachable(id string) (*session, error) {
	t.trimKept()
	t.mu.Lock()
	defer t.mu.Unlock()
	if sess := t.running[id]; sess != nil {
		return sess, nil
	}
	for _, sess := range t.kept {
		if sess.id == id {
			return sess.session, nil
		}
	}
	return nil, notFound(id)
}

// forget drops a session that has no process left.
func (t *table) forget(sess *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leftover, sess.id)
}

// find finds a running session.
func (t *table) find(id string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sess := t.running[id]; sess != nil {
		return sess, nil
	}
	return nil, notFound(id)
}

// killable finds a session that has a process left.
func (t *table) killable(id string) (*session, error) {
	t.mu.Lock()
	sess, leftover, ended := t.running[id], t.leftover[id], slices.Contains(t.ended, id)
	t.mu.Unlock()
	if sess != nil {
		return sess, nil
	}
	if leftover != nil && leftover.hasProcesses() {
		return leftover, nil
	}
	if ended {
		return nil, fail.New("session_ended", "Session "+id+" has ended.", "")
	}
	return nil, notFound(id)
}

func notFound(id string) error {
	if len(id) > 64 {
		id = id[:64] + "…"
	}
	return fail.New("session_not_found", fmt.Sprintf("session not found: %q", id), "")
}
