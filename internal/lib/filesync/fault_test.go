package filesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// change makes a tree different in every way that a sync can.
func (w *world) change() {
	w.write(w.local, "keep", "k", "replace", "old", "gone/a/b", "1", "gone/c", "2", "type", "file", "dir/x", "3", "link", "-> keep", "mode", "m")
	w.run(Push, "")
	if err := os.Link(filepath.Join(w.remote, "replace"), filepath.Join(w.remote, "..", "elsewhere")); err != nil {
		w.t.Fatal(err)
	}
	w.write(w.local, "replace", "new content", "added", "4", "new/a/b", "5", "new/c", "6")
	w.remove(w.local, "gone", "type", "dir", "link")
	w.write(w.local, "type/x", "7", "dir", "now a file", "link", "-> replace")
	if err := os.Chmod(filepath.Join(w.local, "mode"), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// TestFaults: after an error of the system at any step, the tree is as it was. After the death
// of the process at any step, the next look finds the tree in its old state or in its new one
// (S9, S12).
func TestFaults(t *testing.T) {
	for _, death := range []bool{false, true} {
		for n, more := 1, true; more; n++ {
			t.Run(fmt.Sprintf("death %v at step %d", death, n), func(t *testing.T) {
				w := newWorld(t)
				w.change()
				before, after := withoutTimes(dump(t, w.remote)), withoutTimes(dump(t, w.local))
				at, where := 0, ""
				w.far = func(step string) error {
					if at++; at != n {
						return nil
					}
					where = step
					if death {
						return errCrash
					}
					return &os.PathError{Op: "rename", Path: "x", Err: syscall.ENOSPC}
				}
				code := CodeNoSpace
				if death {
					code = CodeLost
				}
				w.Verb = Push
				_, err := w.Run(t.Context())
				w.far = nil
				if more = at >= n; !more {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				w.wants(err, code)
				if !death {
					w.differ(before, withoutTimes(dump(t, w.remote)))
				}
				// A look ends what the dead process had begun.
				w.Verb = Push
				y := w.Sync
				y.Local = filepath.Join(filepath.Dir(w.local), "nothing")
				if _, _, err := y.Backups(t.Context()); err != nil {
					w.wants(err, CodeChanged) // it only looks
				}
				y = w.Sync
				_, err = y.Undo(t.Context(), "20000101T000000.000-NONE")
				w.wants(err, CodeNotFound) // of the backup: what was begun is ended without an error
				if now := withoutTimes(dump(t, w.remote)); !slices.Equal(now, before) && !slices.Equal(now, after) {
					t.Errorf("after %q the tree is neither the old nor the new one: %q", where, now)
				}
				w.run(Push, "")
				w.differ(after, withoutTimes(dump(t, w.remote)))
				if left, err := filepath.Glob(filepath.Join(os.Getenv("XDG_STATE_HOME"), "cove", workName, "*", "stage", "*")); err != nil || len(left) > 0 {
					t.Errorf("%q is left, %v", left, err)
				}
			})
			if t.Failed() {
				return
			}
		}
	}
}

// TestFaultsTwice: an error, and then death during the undo; and death, and then death while
// the next process carries on.
func TestFaultsTwice(t *testing.T) {
	for first := 3; first < 14; first += 3 {
		for second := 1; second < 8; second += 3 {
			w := newWorld(t)
			w.change()
			before, after := withoutTimes(dump(t, w.remote)), withoutTimes(dump(t, w.local))
			at := 0
			w.far = func(string) error {
				switch at++; at {
				case first:
					return syscall.EIO
				case first + second:
					return errCrash
				}
				return nil
			}
			w.Verb = Push
			_, err := w.Run(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			at = first + 1 - second // once more, while it recovers
			_, _ = w.Run(t.Context())
			w.far = nil
			y := w.Sync
			if _, err := y.Undo(t.Context(), "20000101T000000.000-NONE"); err == nil {
				t.Fatal("an unknown backup is undone")
			}
			if now := withoutTimes(dump(t, w.remote)); !slices.Equal(now, before) && !slices.Equal(now, after) {
				t.Fatalf("%d, %d: neither old nor new: %q", first, second, now)
			}
			w.run(Push, "")
			w.differ(after, withoutTimes(dump(t, w.remote)))
		}
	}
}

// TestSaysHalfTakenBack: if an error keeps a sync from being taken back, the first error's text
// says so. The trees are not as they were, and its hint does not say that they are.
func TestSaysHalfTakenBack(t *testing.T) {
	w := newWorld(t)
	w.change()
	w.far = func(step string) error {
		switch step {
		case "replace":
			return syscall.ENOSPC
		case "back":
			return syscall.EIO
		}
		return nil
	}
	w.Verb = Push
	_, err := w.Run(t.Context())
	w.wants(err, CodeNoSpace)
	e, _ := errors.AsType[*fail.Error](err)
	if !strings.Contains(e.Message, "not all was taken back") || !strings.Contains(e.Message, syscall.EIO.Error()) || e.Hint != hintAgain {
		t.Errorf("it says %q, and to type %q", e.Message, e.Hint)
	}
	w.far = nil
	w.run(Push, "")
	w.same(w.local, w.remote)
}

// TestRecoversAlone: an end that only reads has the root for itself while it ends what a dead
// process had begun. Afterwards others may read beside it.
func TestRecoversAlone(t *testing.T) {
	w := newWorld(t)
	w.change()
	w.far = func(step string) error {
		if step == "replace" {
			return errCrash
		}
		return nil
	}
	w.run(Push, CodeLost)
	w.write(w.remote, "later", "x")
	lock, err := os.OpenFile(filepath.Join(StateDir(), "sync", "locks", keyOf(w.remote)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	shared := func() bool {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		if err == nil {
			err = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
		} else if errors.Is(err, syscall.EWOULDBLOCK) {
			return false
		}
		if err != nil {
			t.Error(err)
		}
		return true
	}
	recovers, reads := false, false
	w.far = func(step string) error {
		recovers = true
		if shared() {
			t.Errorf("at %q another end may recover, too", step)
		}
		return nil
	}
	w.step = func(string) error {
		reads = true
		if !shared() {
			t.Error("nobody else may read after the recovery")
		}
		return nil
	}
	w.run(Pull, "")
	if !recovers || !reads {
		t.Errorf("recovered: %v, read: %v", recovers, reads)
	}
	w.same(w.local, w.remote)
}

// cutAfter ends a stream after n bytes.
type cutAfter struct {
	r    io.Reader
	left *atomic.Int64
}

func (c cutAfter) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := c.r.Read(p[:min(int64(len(p)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// TestCut: a connection that is cut at any byte changes nothing, or everything. Content that
// had come is not sent again (S11).
func TestCut(t *testing.T) {
	content := func(seed byte) string { // which does not become smaller
		b := make([]byte, 300<<10)
		for i, x := 0, uint32(seed)+1; i < len(b); i++ {
			x = x*1664525 + 1013904223
			b[i] = byte(x >> 24)
		}
		return string(b)
	}
	for _, verb := range []Verb{Push, Pull} {
		w := newWorld(t)
		source, target := w.local, w.remote
		if verb == Pull {
			source, target = target, source
		}
		w.mkdir(target)
		w.write(source, "old", "1")
		w.run(verb, "")
		w.write(source, "big", content(1), "d/big", content(2), "d/e/f", content(3), "small", "2")
		w.remove(source, "old")
		before, after := dump(t, target), dump(t, source)
		total, finished := int64(0), false
		for limit := int64(10); !finished; limit += limit/7 + 13 {
			var in, out atomic.Int64
			in.Store(limit)
			out.Store(limit)
			w.cut = func(r io.Reader, wr io.Writer) (io.Reader, io.Writer) {
				if verb == Pull {
					return cutAfter{r, &in}, wr
				}
				return r, cutWriter{wr, &out}
			}
			w.Verb = verb
			report, err := w.Run(t.Context())
			if err == nil {
				finished = true
				total = report.Sent
			}
			if now := dump(t, target); !slices.Equal(now, before) && !slices.Equal(now, after) {
				t.Fatalf("%s cut at %d: neither old nor new", verb, limit)
			}
		}
		w.cut = nil
		w.run(verb, "")
		w.differ(after, dump(t, target))
		if total > 650<<10 {
			t.Errorf("%s: after the cuts, %d bytes were sent, as if nothing had come", verb, total)
		}
	}
}

// cutWriter ends a connection after some bytes.
type cutWriter struct {
	w    io.Writer
	left *atomic.Int64
}

func (c cutWriter) Write(p []byte) (int, error) {
	left := c.left.Load()
	n, err := c.w.Write(p[:max(0, min(int64(len(p)), left))])
	c.left.Add(-int64(n))
	if err == nil && n < len(p) {
		if cl, ok := c.w.(io.Closer); ok {
			_ = cl.Close()
		}
		err = errors.New("the connection is cut")
	}
	return n, err
}

// TestDamage: if any one byte is damaged on the way, nothing is changed (S11).
func TestDamage(t *testing.T) {
	w := newWorld(t)
	w.mkdir(w.remote)
	w.write(w.local, "a", strings.Repeat("content", 50_000), "b/c", "small", "d", "-> a")
	before, after := dump(t, w.remote), dump(t, w.local)
	for at := int64(0); at < 2600; at += 111 {
		w.cut = func(r io.Reader, wr io.Writer) (io.Reader, io.Writer) { return r, &damager{wr, at} }
		w.Verb = Push
		_, err := w.Run(t.Context())
		if now := dump(t, w.remote); !slices.Equal(now, before) && !(err == nil && slices.Equal(now, after)) {
			t.Fatalf("damage at %d: %v, and the tree is another", at, err)
		}
		if err == nil {
			w.cut = nil
			if _, err := w.Undo(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type damager struct {
	w  io.Writer
	at int64
}

func (d *damager) Write(p []byte) (int, error) {
	if d.at < 0 && len(p) == headerLen && p[0] == kindAlive {
		// A damaged length may have the end wait for more than comes. In a sprite it gives up
		// after aliveLimit; here it does so at once.
		return 0, errors.Join(io.ErrClosedPipe, d.Close())
	}
	if 0 <= d.at && d.at < int64(len(p)) {
		p = append([]byte(nil), p...)
		p[d.at] ^= 0x41
	}
	d.at -= int64(len(p))
	return d.w.Write(p)
}
func (d *damager) Close() error { return d.w.(io.Closer).Close() }

// TestChangedMeanwhile: a target that changes between the comparison and the writing is not
// overwritten. A file that changes while it is read is left out.
func TestChangedMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1", "b", "2", "c", "3")
	w.run(Push, "")
	w.write(w.local, "a", "new", "c", "new")
	w.far = func(step string) error {
		if step == "op" {
			w.far = nil
			w.write(w.remote, "c", "theirs, just now")
		}
		return nil
	}
	w.run(Push, CodeChanged)
	if w.read(w.remote, "a") != "1" || w.read(w.remote, "c") != "theirs, just now" {
		t.Error("it was written over, or half of it was")
	}
	w.far = nil
	w.run(Push, CodeConflict)
	w.write(w.remote, "in-the-way", "x")
	w.write(w.local, "in-the-way", "y")
	w.run(Push, CodeConflict)
}

// TestMergeAfterCut: texts that came partly or wholly in a cut attempt merge later like texts
// that came at once. So do texts kept after a block that a dying process had written by half.
func TestMergeAfterCut(t *testing.T) {
	lines := func(name, first, last string, n int) string {
		x := uint32(len(name) * n)
		var b strings.Builder
		for i := range n {
			x = x*1664525 + 1013904223
			fmt.Fprintf(&b, "%s %d %08x\n", name, i, x)
		}
		return first + "\n" + b.String() + last + "\n"
	}
	files := map[string]int{"a/small": 20, "b": 5000, "c": 40_000}
	for _, verb := range []Verb{Push, Pull} {
		w := newWorld(t)
		source, target := w.local, w.remote
		if verb == Pull {
			source, target = target, source
		}
		w.mkdir(target)
		for name, n := range files {
			w.write(source, name, lines(name, "1", "2", n))
		}
		settle()
		var left atomic.Int64
		left.Store(220 << 10)
		w.cut = func(r io.Reader, wr io.Writer) (io.Reader, io.Writer) {
			if verb == Pull {
				return cutAfter{r, &left}, wr
			}
			return r, cutWriter{wr, &left}
		}
		w.Verb = verb
		if _, err := w.Run(t.Context()); err == nil {
			t.Fatal("it was not cut")
		}
		w.cut = nil
		staged, err := filepath.Glob(filepath.Join(filepath.Dir(w.local), "*", "cove", workName, "*", "stage", "*"))
		near, nearErr := filepath.Glob(filepath.Join(w.State, workName, "*", "stage", "*"))
		if err = errors.Join(err, nearErr); err != nil || len(staged)+len(near) == 0 {
			t.Fatalf("%s: nothing had come, %v", verb, err)
		}
		w.run(verb, "")
		torn, err := os.OpenFile(filepath.Join(w.pair(), "texts"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = torn.Write([]byte("\xff\x7fhalf a block"))
		}
		if err = errors.Join(err, torn.Close()); err != nil {
			t.Fatal(err)
		}
		w.write(source, "later", lines("later", "1", "2", 30))
		settle()
		w.run(verb, "")
		files := maps.Clone(files)
		files["later"] = 30
		for name, n := range files {
			w.write(w.local, name, lines(name, "here", "2", n))
			w.write(w.remote, name, lines(name, "1", "there", n))
		}
		settle()
		if report := w.run(Pull, ""); report.Merged.Count != int64(len(files)) {
			t.Errorf("%s: got %+v", verb, report)
		}
		for name, n := range files {
			if w.read(w.local, name) != lines(name, "here", "there", n) {
				t.Errorf("%s: %s did not merge", verb, name)
			}
		}
	}
}

// TestEndIsStopped: an end in the sprite that is told to stop says that the sync may
// be tried again.
func TestEndIsStopped(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1")
	w.far = func(string) error { return context.Canceled }
	w.run(Push, CodeLost)
	w.far = nil
	w.run(Push, "")
	w.same(w.local, w.remote)
}
