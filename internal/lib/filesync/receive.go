package filesync

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// A receiver writes content into the stage, in the order of the plan.
type receiver struct {
	e     *end
	stage *tree
	t     *tree
	plan  *reading[op]
	at    int64 // the number of the operation that plan reads next
	files int64 // that came, or did not
	crew  crew

	n    int64
	cur  op
	file *os.File // nil: between two files
	sum  hash.Hash
	size int64
}

// receive takes in the content of the plan's files.
func (e *end) receive(ctx context.Context) error {
	if e.plan == nil {
		return rejectedf("", "content without a plan")
	}
	r := &receiver{e: e}
	var err error
	if r.plan, err = e.plan.read(); err != nil {
		return err
	}
	if r.stage, err = openTree(filepath.Join(e.work.dir, "stage")); err != nil {
		return err
	}
	defer r.stage.close()
	if r.t, err = openTree(e.root); err != nil {
		return err
	}
	defer r.t.close()
	for {
		f, err := e.c.recv()
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && f.kind == kindLast {
			return r.last(f)
		}
		if err == nil {
			err = r.frame(f)
		}
		if err != nil {
			_ = r.crew.wait() // its error is err, or comes after it
			if r.file != nil {
				_ = r.file.Close()
			}
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				_ = e.work.unstage() // or the disk stays full
			}
			if r.cur.entry.Path != "" {
				return coded(fmt.Sprintf("write %q", r.cur.entry.Path), err)
			}
			return err
		}
	}
}

func (r *receiver) frame(f frame) error {
	defer f.release()
	d := &dec{b: f.data}
	switch f.kind {
	case kindBegin:
		n, from := d.uint(), d.int()
		if err := d.end(); err != nil {
			return err
		}
		return r.begin(n, from)
	case kindData:
		return r.data(f.data)
	case kindFile:
		sum := d.hash()
		if err := d.end(); err != nil {
			return err
		}
		return r.finish(sum)
	case kindPack:
		for len(d.b) > 0 {
			if err := r.packed(d); err != nil {
				return err
			}
		}
		return r.settle() // the buffer is given back
	case kindNone:
		n := d.uint()
		_ = d.string()
		if err := d.end(); err != nil {
			return err
		}
		return r.none(n)
	}
	return rejectedf("", "a frame %q where content belongs", f.kind)
}

// find goes on in the plan to operation n, which must be the next with content.
func (r *receiver) find(n uint64) error {
	for {
		o, ok, err := r.plan.next()
		if err != nil {
			return err
		}
		at := r.at
		r.at++
		wanted := ok && o.kind == opPut && o.entry.Type == File
		if !ok || wanted && uint64(at) != n {
			return rejectedf("", "content for operation %d out of order", n)
		}
		if wanted {
			r.n, r.cur = at, o
			r.files++
			return nil
		}
	}
}

func (r *receiver) begin(n uint64, from int64) error {
	if r.file != nil {
		return rejectedf("", "a file inside another file")
	}
	if err := r.find(n); err != nil {
		return err
	}
	if have := r.e.staged[r.n]; from != 0 && from != have.size {
		return rejectedf(r.cur.entry.Path, "it resumes at byte %d, but %d bytes are here", from, have.size)
	}
	return r.open(from)
}

// open opens the staged file, to write from the byte from on.
func (r *receiver) open(from int64) error {
	r.sum, r.size = sha256.New(), from
	dir, name, err := r.stage.at(r.cur.from)
	if err != nil {
		return err
	}
	if from == 0 {
		r.file, err = createStaged(dir, name, 0o600)
		return err
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	r.file = os.NewFile(uintptr(fd), name)
	if n, err := copyBuffered(r.sum, r.file); err != nil || n != from {
		return errors.Join(err, fmt.Errorf("%d bytes were staged, but %d are there", from, n))
	}
	return nil
}

func (r *receiver) data(p []byte) error {
	if r.file == nil {
		return rejectedf("", "data outside of a file")
	}
	if r.size += int64(len(p)); r.size > r.cur.entry.Size {
		return rejectedf(r.cur.entry.Path, "it is longer than it was said to be")
	}
	r.sum.Write(p)
	_, err := r.file.Write(p)
	return err
}

// finish ends a file, whose hash must be right.
func (r *receiver) finish(sum Hash) error {
	if r.file == nil {
		return rejectedf("", "the end of a file that has not begun")
	}
	f := r.file
	r.file = nil
	if r.size != r.cur.entry.Size || Hash(r.sum.Sum(nil)) != sum {
		return errors.Join(f.Close(), rejectedf(r.cur.entry.Path, "its content was damaged on the way"))
	}
	dir, name, err := r.stage.at(r.cur.from)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	mode := r.mode()
	if err := f.Chmod(fs.FileMode(mode)); err != nil {
		return errors.Join(err, f.Close())
	}
	s := sealing{op: r.cur, dir: dir, name: name, mode: mode}
	if err := s.seal(f); err != nil {
		return err
	}
	return r.note(&s)
}

// mode is the mode that a file will get. If it replaces a file with the same travelling bits,
// it gets all permission bits of that file.
func (r *receiver) mode() uint32 {
	mode := uint32(r.cur.entry.Mode)
	if p := &r.cur.prior; p.Type != File || p.Mode != r.cur.entry.Mode {
		return mode
	}
	fd, base, err := r.t.at(r.cur.entry.Path)
	if err != nil {
		return mode
	}
	st, err := statAt(fd, base)
	if err != nil {
		return mode
	}
	return st.Mode & 0o777
}

// note remembers the stamp of a file that its folder's move will not change.
func (r *receiver) note(s *sealing) error {
	if !s.op.inside() {
		return nil
	}
	return r.e.stamps.add(written{s.op.entry.Path, s.stamp})
}

// packed takes in one small file.
func (r *receiver) packed(d *dec) error {
	n, sum, size := d.uint(), d.hash(), d.uint()
	content := d.bytes(size)
	if d.err != nil {
		return d.err
	}
	if r.file != nil {
		return rejectedf("", "a file inside another file")
	}
	if err := r.find(n); err != nil {
		return err
	}
	if int64(len(content)) != r.cur.entry.Size || Hash(sha256.Sum256(content)) != sum {
		return rejectedf(r.cur.entry.Path, "its content was damaged on the way")
	}
	if parent := path.Dir(r.cur.from); parent != r.crew.parent { // whose folder stays open meanwhile
		if err := r.settle(); err != nil {
			return err
		}
		r.crew.parent = parent
	}
	dir, name, err := r.stage.at(r.cur.from)
	if err != nil {
		return err
	}
	r.crew.write(&sealing{op: r.cur, dir: dir, name: name, mode: r.mode(), content: content})
	return nil
}

// settle waits for the files that are being written.
func (r *receiver) settle() error {
	if err := r.crew.wait(); err != nil {
		return err
	}
	for _, s := range r.crew.done {
		if err := r.note(s); err != nil {
			return err
		}
	}
	r.crew.done = r.crew.done[:0]
	return nil
}

// none notes that a file can't be had: as it is, or any more.
func (r *receiver) none(n uint64) error {
	if r.file == nil {
		if err := r.find(n); err != nil {
			return err
		}
	} else if uint64(r.n) != n {
		return rejectedf("", "a file inside another file")
	} else {
		if err := r.file.Close(); err != nil {
			return err
		}
		r.file = nil
	}
	r.e.missed[r.n] = true
	dir, name, err := r.stage.at(r.cur.from)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(dir, name, 0)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// last handles the end of the content. It is an error if any content is missing.
func (r *receiver) last(f frame) error {
	d := &dec{b: f.data}
	n := d.uint()
	if d.end() != nil || r.file != nil || n != uint64(r.files) {
		return rejectedf("", "the content ends too early")
	}
	for {
		o, ok, err := r.plan.next()
		if err != nil {
			return err
		}
		if !ok {
			return sendJSON(r.e.c, kindDone, nil)
		}
		if o.kind == opPut && o.entry.Type == File {
			return rejectedf(o.entry.Path, "its content did not come")
		}
	}
}

// sealing is a file on its way to being staged, whole.
type sealing struct {
	op      op
	dir     int // where it is, open
	name    string
	mode    uint32
	content []byte
	stamp   stamp // once it is
}

// write writes a small file.
func (s *sealing) write() error {
	f, err := createStaged(s.dir, s.name, s.mode)
	if err != nil {
		return err
	}
	_, err = f.Write(s.content)
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	if err == nil && st.Mode&0o777 != s.mode { // by the process's umask
		err = f.Chmod(fs.FileMode(s.mode))
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return s.seal(f)
}

// seal gives a staged file its time, and closes it.
func (s *sealing) seal(f *os.File) error {
	err := setTime(s.dir, s.name, s.op.entry.Mtime)
	if err == nil && s.op.inside() {
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		s.stamp = stamp{st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	}
	return errors.Join(err, f.Close())
}

// crewSize is how many small files are written at a time: most of the time of
// each is a wait for the file system.
const crewSize = 4

// A crew writes small files side by side. Only its owner calls it.
type crew struct {
	parent string // the folder below the stage that they are in
	done   []*sealing
	slots  chan struct{}
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error // the first; guarded by mu
}

// write writes a file, sooner or later. Its content stays as it is until wait.
func (c *crew) write(s *sealing) {
	if c.slots == nil {
		c.slots = make(chan struct{}, crewSize)
	}
	c.slots <- struct{}{}
	c.done = append(c.done, s)
	c.wg.Go(func() {
		err := s.write()
		if err != nil {
			c.mu.Lock()
			if c.err == nil {
				c.err = coded(fmt.Sprintf("write %q", s.op.entry.Path), err)
			}
			c.mu.Unlock()
		}
		<-c.slots
	})
}

// wait returns once all is written, or the first error.
func (c *crew) wait() error {
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
