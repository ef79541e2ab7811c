package filesync

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// checkOp refuses an operation on a path outside the tree, or on one that never travels.
func checkOp(o *op) error {
	if err := safepath.Check(o.entry.Path); err != nil {
		return rejectedf(o.entry.Path, "%v", err)
	}
	if safepath.HasDotGit(o.entry.Path) {
		return rejectedf(o.entry.Path, "git would take it for its own, and run what it says")
	}
	if o.kind < opRemove || o.kind > opChmod || o.entry.Mode&^modeMask != 0 || o.entry.Size < 0 || o.from != "" {
		return rejectedf(o.entry.Path, "it does not follow the protocol")
	}
	if o.kind == opPut && o.entry.Type == Link {
		if why := badTarget(o.entry.Path, o.entry.Target); why != "" {
			return rejectedf(o.entry.Path, "%s", why)
		}
	}
	return nil
}

// staged is the beginning of a file's content, or all of it.
type staged struct {
	size int64
	hash Hash
}

// Limits of the search for renames. A rename is a file that goes, and one of the same size and
// time that comes.
const (
	maxGone    = 100_000  // files that go and are remembered
	renameSize = 16 << 10 // below which sending is as cheap
)

type sizeTime struct{ size, mtime int64 }

// layout says where below the stage things are. A new folder and all that comes into it are
// staged as one, and one rename moves them to their place.
type layout struct {
	t     *tree // the target
	stage *tree
	top   string // the new folder that the last operations were in; empty: none
}

// place finds an operation's place, and makes new folders there.
func (l *layout) place(o *op) error {
	switch {
	case o.kind != opPut && o.kind != opMkdir:
		return nil
	case l.top != "" && below(o.entry.Path, l.top):
		o.from = keyOf(l.top) + o.entry.Path[len(l.top):]
	case o.kind == opPut:
		o.from = stageName(&o.entry)
		return nil
	default:
		// If such a folder is there, perhaps ignored, the new files go into it.
		if now, err := l.t.lstat(o.entry.Path); err != nil || now.Type == Dir {
			return err
		}
		l.top, o.from = o.entry.Path, keyOf(o.entry.Path)
	}
	if o.kind != opMkdir {
		return nil
	}
	fd, base, err := l.stage.at(o.from)
	if err == nil {
		err = unix.Mkdirat(fd, base, uint32(o.entry.Mode)|0o700)
	}
	return err
}

// A preparer takes in a plan. It stages whatever needs no content from elsewhere: links, files
// that an earlier attempt has left, and renamed files. It answers with the latter two, for the
// source to compare.
type preparer struct {
	layout
	e    *end
	left *tree // of an earlier attempt; nil: there is nothing
	gone map[sizeTime]string
	l    *lister
}

func (e *end) newPreparer() (*preparer, error) {
	p := &preparer{e: e, gone: map[sizeTime]string{}, l: &lister{c: e.c}}
	stage, left := filepath.Join(e.work.dir, "stage"), filepath.Join(e.work.dir, "left")
	entries, err := os.ReadDir(stage)
	if err == nil && len(entries) > 0 {
		err = errors.Join(removeAll(left), os.Rename(stage, left))
	}
	if err = errors.Join(err, e.work.makeDirs()); err != nil {
		return nil, err
	}
	if p.stage, err = openTree(stage); err != nil {
		return nil, err
	}
	if p.left, err = openTree(left); errors.Is(err, fs.ErrNotExist) {
		p.left, err = nil, nil
	}
	if err == nil {
		p.t, err = openTree(e.root)
	}
	if err == nil {
		e.plan, err = newSpool(e.work.dir, encodeOp, decodeOp)
	}
	if err == nil {
		e.stamps, err = newSpool(e.work.dir, encodeWritten, decodeWritten)
	}
	e.staged, e.missed = map[int64]staged{}, map[int64]bool{}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *preparer) close() {
	for _, t := range []*tree{p.t, p.stage, p.left} {
		if t != nil {
			t.close()
		}
	}
}

// add takes in operation n.
func (p *preparer) add(n int64, o *op) error {
	if err := p.prior(o); err != nil {
		return opError(o, err)
	}
	if err := p.place(o); err != nil {
		return opError(o, err)
	}
	have, err := p.have(o)
	if err != nil {
		return opError(o, err)
	}
	if have.size > 0 {
		p.e.staged[n] = have
		err = p.l.add(func(r *enc) { r.uint(uint64(n)); r.int(have.size); r.bytes(have.hash[:]) })
	}
	return errors.Join(err, p.e.plan.add(*o))
}

// end ends the answer.
func (p *preparer) end() error {
	return errors.Join(removeAll(filepath.Join(p.e.work.dir, "left")), p.l.end())
}

// prior checks that a path that will be deleted or replaced is still what the plan was made
// for. It notes files that will be deleted.
func (p *preparer) prior(o *op) error {
	if o.prior.Type == None || o.kind == opRmdir || o.kind == opMkdir {
		return nil
	}
	now, err := p.t.lstat(o.entry.Path)
	if err == nil && !holdsStill(&o.prior, &now) {
		err = errChangedNow
	}
	if err != nil {
		return err
	}
	if o.kind == opRemove && now.Type == File && now.Size >= renameSize && len(p.gone) < maxGone {
		p.gone[sizeTime{now.Size, now.Mtime}] = o.entry.Path
	}
	return nil
}

// have returns the content of operation o that is there already. It makes links.
func (p *preparer) have(o *op) (staged, error) {
	if o.kind != opPut {
		return staged{}, nil
	}
	fd, base, err := p.stage.at(o.from)
	if err != nil {
		return staged{}, err
	}
	if o.entry.Type == Link {
		if err := unix.Symlinkat(o.entry.Target, fd, base); err != nil {
			return staged{}, err
		}
		return staged{}, setTime(fd, base, o.entry.Mtime)
	}
	if p.left != nil {
		if dir, name, err := p.left.at(o.from); err == nil && rename(dir, name, fd, base) == nil {
			have, err := hashStaged(fd, base, o.entry.Size)
			if err == nil && have.size == 0 {
				err = unix.Unlinkat(fd, base, 0)
			}
			return have, err
		}
	}
	from, ok := p.gone[sizeTime{o.entry.Size, o.entry.Mtime}]
	if !ok {
		return staged{}, nil
	}
	if err := p.copy(from, fd, base); err != nil {
		return staged{}, err
	}
	return hashStaged(fd, base, o.entry.Size)
}

// copy stages a copy of a file of the tree.
func (p *preparer) copy(from string, fd int, base string) error {
	src, _, err := p.t.open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := createStaged(fd, base, 0o600)
	if err != nil {
		return err
	}
	_, err = copyBuffered(dst, src)
	return errors.Join(err, dst.Close())
}

func createStaged(dir int, name string, mode uint32) (*os.File, error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// hashStaged hashes the file that is staged under a name, if it has at most size bytes: a
// longer file is not ours.
func hashStaged(dir int, name string, size int64) (staged, error) {
	f, now, err := openAt(dir, name, name)
	if err != nil || now.Size > size {
		return staged{}, nil // it will be written anew
	}
	defer f.Close()
	sum := sha256.New()
	n, err := copyBuffered(sum, f)
	return staged{n, Hash(sum.Sum(nil))}, err
}

// copyBuffered copies through a buffer of the pool, and not by a system call that copies,
// which is slow in gVisor.
func copyBuffered(w io.Writer, r io.Reader) (int64, error) {
	buf := newBuffer()
	defer frame{data: buf}.release()
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buf)
}
