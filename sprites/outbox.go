package sprites

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

const (
	outboxRoom  = 128 << 10 // data waits while this much is queued
	outboxMax   = 1 << 20   // nothing more is queued: the other side makes us answer and does not read
	outboxFlush = 250 * time.Millisecond
)

// outbox is the writing side of an upgraded connection. Write queues and returns; a
// goroutine sends. So the holder of the WebSocket's write lock never waits for the
// network. Data writers wait beforehand, in waitRoom, and control messages do not wait
// at all.
type outbox struct {
	io.ReadWriteCloser

	mu     sync.Mutex
	change sync.Cond // of any of the following
	queue  []byte
	flying int // bytes being written now
	err    error
	closed bool

	deadline time.Time // of waitRoom
	timer    *time.Timer

	done chan struct{} // closed when the goroutine has ended
}

var errOutbox = errors.New("the server does not read what it asked for")

func newOutbox(conn io.ReadWriteCloser) *outbox {
	o := &outbox{ReadWriteCloser: conn, done: make(chan struct{})}
	o.change.L = &o.mu
	go o.run()
	return o
}

// run sends what is queued, until an error or, after Close, nothing is left.
func (o *outbox) run() {
	defer close(o.done)
	var batch []byte
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for len(o.queue) == 0 && !o.closed {
			o.change.Wait()
		}
		if len(o.queue) == 0 {
			return
		}
		batch, o.queue = o.queue, batch[:0]
		o.flying = len(batch)
		o.mu.Unlock()
		_, err := o.ReadWriteCloser.Write(batch)
		o.mu.Lock()
		o.flying = 0
		o.change.Broadcast()
		if err != nil {
			o.err = err
			return
		}
	}
}

// Write queues p.
func (o *outbox) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
		return 0, o.err
	case o.closed:
		return 0, io.ErrClosedPipe
	case len(o.queue)+len(p) > outboxMax:
		return 0, errOutbox
	}
	o.queue = append(o.queue, p...)
	o.change.Broadcast()
	return len(p), nil
}

// waitRoom waits until more data may be queued.
func (o *outbox) waitRoom() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		switch {
		case o.err != nil:
			return o.err
		case o.closed:
			return io.ErrClosedPipe
		case !o.deadline.IsZero() && !time.Now().Before(o.deadline):
			return os.ErrDeadlineExceeded
		case o.queued() < outboxRoom:
			return nil
		}
		o.change.Wait()
	}
}

// setDeadline makes waitRoom fail from t on; the zero time takes that back.
func (o *outbox) setDeadline(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deadline = t
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if !t.IsZero() && !o.closed {
		o.timer = time.AfterFunc(time.Until(t), func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.change.Broadcast()
		})
	}
	o.change.Broadcast()
}

// full reports whether data would have to wait.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queued() >= outboxRoom
}

func (o *outbox) queued() int { return len(o.queue) + o.flying }

// Close sends what is queued, if that is done in a moment, closes the
// connection and waits for the goroutine.
func (o *outbox) Close() error {
	o.mu.Lock()
	o.closed = true
	if o.timer != nil {
		o.timer.Stop()
	}
	o.change.Broadcast()
	o.mu.Unlock()

	t := time.NewTimer(outboxFlush)
	defer t.Stop()
	select {
	case <-o.done:
	case <-t.C:
	}
	err := o.ReadWriteCloser.Close()
	<-o.done
	return err
}
