package files

import (
	"sync"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A watchQueue holds the events that a watch's client has not taken yet. Adding never waits,
// and the queue is bounded: events that do not fit are dropped, and the client is told so.
type watchQueue struct {
	ready chan struct{} // has an element if there may be something to take

	mu     sync.Mutex
	items  []sprites.WatchMessage
	last   map[string]sprites.WatchOp // the last event among items, by path
	bytes  int                        // of texts in items
	lost   bool                       // something was dropped after items
	after  []sprites.WatchMessage     // errors, after the one that says so
	closed bool
}

const (
	maxQueued      = 4096
	maxQueuedBytes = 1 << 20
	maxAfter       = 16
)

func newWatchQueue() *watchQueue {
	return &watchQueue{ready: make(chan struct{}, 1), last: map[string]sprites.WatchOp{}}
}

// event adds a change. It drops a change that repeats the last one that is queued for the same
// file, such as the thousandth write.
func (q *watchQueue) event(name string, op sprites.WatchOp, isDir bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last[name] == op {
		return
	}
	if q.add(len(name), sprites.WatchMessage{Type: "event", WatchEvent: &sprites.WatchEvent{
		Path: name, Event: op, Timestamp: time.Now().UTC(), IsDir: isDir,
	}}) {
		q.last[name] = op
	}
}

// complain adds an error.
func (q *watchQueue) complain(m sprites.WatchMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.add(len(m.Message), m) && len(q.after) < maxAfter {
		q.after = append(q.after, m)
	}
}

// lose says that events were lost.
func (q *watchQueue) lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost = true
	q.wake()
}

func (q *watchQueue) add(size int, m sprites.WatchMessage) bool {
	q.lost = q.lost || len(q.items) >= maxQueued || q.bytes+size > maxQueuedBytes
	if q.lost {
		return false // nothing may pass for all that came after a gap
	}
	q.items = append(q.items, m)
	q.bytes += size
	q.wake()
	return true
}

func (q *watchQueue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// close ends the queue; what is in it can still be taken.
func (q *watchQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake()
}

// take waits until there is something, and takes it all. more is false when
// nothing can follow.
func (q *watchQueue) take() (items []sprites.WatchMessage, more bool) {
	for {
		<-q.ready
		q.mu.Lock()
		items, more = q.items, !q.closed
		if q.lost {
			items = append(items, sprites.WatchMessage{
				Type: "error", Code: "events_lost", Message: "events were lost: they came faster than the client read them",
			})
			items = append(items, q.after...)
		}
		q.items, q.after, q.bytes, q.lost = nil, nil, 0, false
		clear(q.last)
		q.mu.Unlock()
		if len(items) > 0 || !more {
			return items, more
		}
	}
}
