package files

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/sprites"
)

// TestWatchOverflow makes the kernel report that it had no room for events. The client is
// told, and folders made meanwhile are watched.
func TestWatchOverflow(t *testing.T) {
	dir := t.TempDir()
	me, ok := new(users.Database).Lookup(strconv.Itoa(os.Getuid()))
	if !ok {
		t.Fatal("I am nobody")
	}
	queue, budget := newWatchQueue(), &atomic.Int64{}
	if err := os.Mkdir(dir+"/gone", 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := newWatcher(me, []string{dir, dir + "/gone"}, true, queue, budget)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := errors.Join(os.Mkdir(dir+"/new", 0o700), os.Remove(dir+"/gone")); err != nil {
		t.Fatal(err)
	}
	w.handle(inotifyEvent{wd: -1, mask: unix.IN_Q_OVERFLOW})
	if w.views[dir+"/new"] == nil || w.views[dir+"/gone"] != nil || len(w.byWD) != 2 || budget.Load() != 2 {
		t.Errorf("got %v, %v, %d", w.views, w.byWD, budget.Load())
	}
	w.free()
	queue.close()
	items, more := queue.take()
	if more || len(items) != 2 || items[0].Code != "events_lost" || items[1].Code != "ENOENT" || budget.Load() != 0 {
		t.Errorf("got %+v, %v", items, more)
	}
}

// TestWatchQueue adds more than fits. The queue then holds the right events, followed only by
// the error that events were lost.
func TestWatchQueue(t *testing.T) {
	q := newWatchQueue()
	for i := range maxQueued + 10 {
		q.event(strconv.Itoa(i), sprites.WatchWrite, false)
		q.event(strconv.Itoa(i), sprites.WatchWrite, false)
	}
	items, more := q.take()
	if last := items[len(items)-1]; !more || len(items) != maxQueued+1 || last.Code != "events_lost" || items[maxQueued-1].Path != strconv.Itoa(maxQueued-1) {
		t.Errorf("got %d, the last %+v", len(items), last)
	}
	for _, op := range []sprites.WatchOp{"write", "write", "remove", "create", "write"} {
		q.event("a", op, false)
	}
	q.complain(sprites.WatchMessage{Type: "error"})
	q.close()
	if items, more = q.take(); more || len(items) != 5 || items[4].Type != "error" {
		t.Errorf("got %d, %v", len(items), more)
	}
}

func FuzzParseEvents(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\xff\xff\xff\xffname"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		n := 0
		for e := range parseEvents(buf) {
			n += unix.SizeofInotifyEvent + len(e.name)
		}
		if n > len(buf) {
			t.Errorf("%d bytes from %d", n, len(buf))
		}
	})
}
