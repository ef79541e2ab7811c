package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// followPoll is how often a log is checked for more if the system does not report that.
const followPoll = 100 * time.Millisecond

// Follow writes the log's events with numbers of at least from to w, one per line. It goes on
// as the log grows, until it has written the end event. ErrDead: the log has no end event, and
// no supervisor is there to write one.
func Follow(ctx context.Context, w io.Writer, dir string, from int64) error {
	f, err := os.Open(filepath.Join(dir, "events.jsonl"))
	for errors.Is(err, os.ErrNotExist) {
		if dead(dir) {
			return ErrDead
		}
		if err := pause(ctx, nil); err != nil {
			return err
		}
		f, err = os.Open(filepath.Join(dir, "events.jsonl"))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var grown <-chan fsnotify.Event
	if w, err := fsnotify.NewWatcher(); err == nil { // else it is looked at from time to time
		defer w.Close()
		if w.Add(f.Name()) == nil {
			grown = w.Events
		}
	}
	r := bufio.NewReaderSize(f, 256<<10)
	var line []byte // a line whose end is not there yet
	last := false   // nobody writes any more: what is there is all
	for {
		part, err := r.ReadBytes('\n')
		line = append(line, part...)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err != nil {
			if last {
				return ErrDead
			}
			if last = dead(dir); !last {
				if err := pause(ctx, grown); err != nil {
					return err
				}
			}
			continue
		}
		last = false
		var ev struct {
			Seq  int64
			Type string
		}
		if err := json.Unmarshal(line, &ev); err != nil {
			return err
		}
		if ev.Seq >= from {
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		if ev.Type == "end" {
			return nil
		}
		line = nil
	}
}

// pause waits for an event, and not for long.
func pause(ctx context.Context, events <-chan fsnotify.Event) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-events:
		return nil
	case <-time.After(followPoll):
		return nil
	}
}

// dead reports whether no supervisor holds the job's lock. A supervisor that has not signed
// the lock yet may be about to take it.
func dead(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) && !recent(dir)
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return false
	}
	st, err := lock.Stat()
	return err == nil && (st.Size() > 0 || !recent(dir))
}

// startLimit is the time that a supervisor has to take its lock. On a machine with much to do it
// may stand still before.
const startLimit = 30 * time.Second

// recent reports whether a job was only just given to a supervisor, which may
// not have taken the lock yet.
func recent(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, "job.json"))
	return err == nil && time.Since(st.ModTime()) < startLimit
}
