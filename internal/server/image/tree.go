package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/extract"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// tree is a layer that is being made. Paths in it are clean, and "" is its root. The same
// path may be made again: the last one counts.
type tree struct {
	ctx    context.Context
	root   int          // open
	user   bool         // marks are in user.* attributes
	lower  []string     // the layers' trees below, the topmost first
	view   *layers.View // what this layer shows with those below
	budget *budget
	buf    []byte

	rootOpaque bool // the names that the layers below have in the root are hidden

	// The current folder: new files are made there.
	fd    int // -1: there is none
	at    string
	times []unix.Timespec // which it gets back
}

// budget is how much an image may have yet. Its methods' errors refuse the image.
type budget struct {
	bytes, files int64
	steps        int64 // what takes time and makes no file: members, names that are looked at, blocks
	copied       int64 // bytes of files of layers below that this layer may copy, holes included
	claim        func(int64) error
}

func (b *budget) step() error {
	if b.steps--; b.steps < 0 {
		return bad("it takes more than %d steps to extract, besides its files", maxSteps)
	}
	return nil
}

// file counts a file with its attributes.
func (b *budget) file(m extract.Meta) error {
	b.files--
	if b.files < 0 {
		return bad("it has more than %d files", maxFiles)
	}
	return b.take(fileCost + attrBytes(m))
}

func attrBytes(m extract.Meta) (n int64) {
	for name, value := range m.Attrs {
		n += int64(len(name) + len(value))
	}
	return n
}

func (b *budget) take(n int64) error {
	if n > b.bytes {
		return bad("it has more than %d bytes", int64(maxBytes))
	}
	b.bytes -= n
	return b.claim(n)
}

// what there is at a name.
type what int

const (
	nothing what = iota
	aFolder
	aWhiteout
	aFile // or anything else but a folder
)

// look says what there is at a name in an open folder.
func look(dir int, name string) (what, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nothing, st, nil
	case err != nil:
		return nothing, st, err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return aFolder, st, nil
	case st.Mode&unix.S_IFMT == unix.S_IFCHR:
		return aWhiteout, st, nil // other devices are left out
	}
	return aFile, st, nil
}

// openTree begins a layer in the empty folder dir, over others. Its root is what theirs is.
func openTree(ctx context.Context, dir string, lower []string, user bool, b *budget) (_ *tree, err error) {
	t := &tree{ctx: ctx, root: -1, user: user, lower: lower, budget: b, fd: -1, buf: make([]byte, copyBlock)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.root, err = extract.Open(unix.AT_FDCWD, dir); err != nil {
		return nil, err
	}
	chain := []string{dir} // the lowest first
	for _, l := range lower {
		chain = append([]string{l}, chain...)
	}
	if t.view, err = layers.OpenView(chain[:1], chain[1:], user); err != nil {
		return nil, err
	}
	m := implied
	if len(lower) > 0 {
		below, err := layers.OpenView(lower[:1], nil, user)
		if err != nil {
			return nil, err
		}
		m = metaOf(below.Root())
		if err := below.Close(); err != nil {
			return nil, err
		}
	}
	return t, extract.Describe(t.root, m, t.attr(""))
}

func (t *tree) close() (err error) {
	for _, fd := range []int{t.fd, t.root} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	if t.view != nil {
		err = errors.Join(err, t.view.Close())
	}
	return err
}

// finish completes the layer. It is on the disk then.
func (t *tree) finish() error {
	if err := t.leave(); err != nil {
		return err
	}
	return onDisk(unix.Syncfs(t.root))
}

// syncAll writes all of a file system to the disk.
func syncAll(f *os.File) error { return unix.Syncfs(int(f.Fd())) }

// implied is what a folder is that nothing is said of.
var implied = extract.Meta{Mode: 0o755, Time: time.Unix(0, 0)}

// metaOf is what a file of a layer below is.
func metaOf(n layers.Node) extract.Meta {
	return extract.Meta{UID: int(n.UID), GID: int(n.GID), Mode: n.Mode & 0o7777, Time: time.Unix(0, n.ModTime), Attrs: n.Attrs}
}

// find finds a path in this layer and those below.
func (t *tree) find(name string) (n layers.Node, found bool, err error) {
	n = t.view.Root()
	for part := range strings.SplitSeq(name, "/") {
		if n, found, err = t.view.Lookup(n, part); err != nil || !found {
			return n, false, err
		}
	}
	return n, true, nil
}

// leave lets go of the current folder. Its times are those of the layer, whatever was made in
// it.
func (t *tree) leave() error {
	if t.fd < 0 {
		return nil
	}
	err := errors.Join(extract.SetTimes(t.fd, t.times), unix.Close(t.fd))
	t.fd = -1
	return err
}

// hold makes an open folder the current one, in place of another.
func (t *tree) hold(fd int, at string) error {
	var st unix.Stat_t
	err := t.leave() // first: it may be the same folder
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	t.fd, t.at, t.times = fd, at, []unix.Timespec{st.Atim, st.Mtim}
	return nil
}

// open opens a folder of this layer. ENOENT, ENOTDIR and ELOOP say that there is none.
func (t *tree) open(dir string) (int, error) {
	if dir == "" {
		return extract.Duplicate(t.root)
	}
	return extract.Beneath(t.root, dir, unix.O_RDONLY)
}

// none reports whether an error of open says that there is no such folder.
func none(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// enter makes a folder the current one. It makes the folder, and those on the way to it, if
// they are not there. It replaces anything else at their paths.
func (t *tree) enter(dir string) error {
	if t.fd >= 0 && t.at == dir {
		return nil
	}
	fd, err := t.open(dir)
	if err == nil {
		return t.hold(fd, dir)
	}
	if !none(err) {
		return err
	}
	if err := t.enter(""); err != nil {
		return err
	}
	seen, found := t.view.Root(), true // what there is on the way, with the layers below
	for part := range strings.SplitSeq(dir, "/") {
		at := path.Join(t.at, part)
		is, _, err := look(t.fd, part)
		if found = found && is <= aFolder; err == nil && found {
			seen, found, err = t.view.Lookup(seen, part)
		}
		if err == nil {
			if is == aFolder {
				fd, err = extract.Open(t.fd, part)
			} else if found && seen.IsDir() {
				fd, err = t.imply(at, is, metaOf(seen))
			} else {
				fd, err = t.imply(at, is, implied)
			}
		}
		if err == nil {
			err = t.hold(fd, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// imply makes a folder that the layer has not described, in the current folder.
func (t *tree) imply(at string, is what, m extract.Meta) (fd int, err error) {
	if err := t.budget.file(m); err != nil {
		return -1, err
	}
	if fd, err = t.mkdir(path.Base(at), is); err != nil {
		return -1, err
	}
	if err := extract.Describe(fd, m, t.attr(at)); err != nil {
		return -1, errors.Join(t.described(at, m, err), unix.Close(fd))
	}
	return fd, nil
}

// mkdir makes a folder in the current one, in place of what is there.
func (t *tree) mkdir(name string, is what) (fd int, err error) {
	if err := t.clear(name, is); err != nil {
		return -1, err
	}
	if fd, err = extract.Folder(t.fd, name); err != nil {
		return -1, err
	}
	if is == aWhiteout { // what is below is deleted, and this is another folder
		if err := extract.Opaque(fd, t.user); err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
	}
	return fd, nil
}

// clear removes what is at a name in the current folder.
func (t *tree) clear(name string, is what) error {
	switch is {
	case nothing:
		return nil
	case aFolder:
		return layers.Remove(extract.Path(t.fd) + "/" + name)
	}
	return unix.Unlinkat(t.fd, name, 0)
}

// place goes to the folder of a path, and removes what is at the path there.
func (t *tree) place(at string, m extract.Meta) (name string, err error) {
	if err := t.budget.file(m); err != nil {
		return "", err
	}
	if err := t.enter(parent(at)); err != nil {
		return "", err
	}
	name = path.Base(at)
	is, _, err := look(t.fd, name)
	if err == nil {
		err = t.clear(name, is)
	}
	return name, err
}

// parent is the folder of a path.
func parent(at string) string {
	if dir := path.Dir(at); dir != "." {
		return dir
	}
	return ""
}

// folder makes a folder, or makes one that is there what it should be.
func (t *tree) folder(at string, m extract.Meta) error {
	if at == "" {
		if err := t.leave(); err != nil {
			return err
		}
		if err := t.budget.take(attrBytes(m)); err != nil {
			return err
		}
		return t.described(at, m, extract.Describe(t.root, m, t.attr(at)))
	}
	if err := t.budget.file(m); err != nil {
		return err
	}
	if err := t.enter(parent(at)); err != nil {
		return err
	}
	name := path.Base(at)
	is, _, err := look(t.fd, name)
	if err != nil {
		return err
	}
	var fd int
	if is == aFolder {
		fd, err = extract.Open(t.fd, name)
	} else {
		fd, err = t.mkdir(name, is)
	}
	if err != nil {
		return err
	}
	return errors.Join(t.described(at, m, extract.Describe(fd, m, t.attr(at))), unix.Close(fd))
}

// file makes a file of size bytes. Blocks of zeros become holes. Holes in a file of a layer
// below are not read.
func (t *tree) file(at string, m extract.Meta, r io.Reader, size int64) error {
	name, err := t.place(at, m)
	if err != nil {
		return err
	}
	f, err := extract.File(t.fd, name)
	if err != nil {
		return err
	}
	if from, ok := r.(*os.File); ok {
		err = t.copyData(f, from, size)
	} else {
		err = t.copy(f, r, 0, size)
	}
	if err == nil {
		err = f.Truncate(size) // it may end with a hole
	}
	if err == nil {
		err = t.described(at, m, extract.Describe(int(f.Fd()), m, t.attr(at)))
	}
	return errors.Join(err, f.Close())
}

var zeros [fileCost]byte

// copyData is copy of a file that may have holes.
func (t *tree) copyData(f, from *os.File, size int64) error {
	for at := int64(0); at < size; {
		begin, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		end, err := from.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = min(end, size)
		if err := t.copy(f, io.NewSectionReader(from, begin, at-begin), begin, at); err != nil {
			return err
		}
	}
	return nil
}

// copy writes what it reads from r to f, from offset at to offset end. It leaves out
// blocks of zeros.
func (t *tree) copy(f *os.File, r io.Reader, at, end int64) error {
	for at < end {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if end-at >= int64(len(t.buf)) { // it may be of zeros, which no budget of bytes has
			if err := t.budget.step(); err != nil {
				return err
			}
		}
		n, err := io.ReadFull(r, t.buf[:min(int64(len(t.buf)), end-at)])
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		b := t.buf[:n]
		for len(b) > 0 {
			run := 0
			for run < len(b) && !bytes.Equal(b[run:min(run+len(zeros), len(b))], zeros[:min(len(zeros), len(b)-run)]) {
				run = min(run+len(zeros), len(b))
			}
			if run > 0 {
				if err := t.budget.take(int64(run)); err != nil {
					return err
				}
				if _, err := f.WriteAt(b[:run], at); err != nil {
					return err
				}
			} else {
				run = min(len(zeros), len(b))
			}
			at += int64(run)
			b = b[run:]
		}
	}
	return nil
}

func (t *tree) symlink(at, to string, m extract.Meta) error {
	if to == "" || len(to) >= unix.PathMax || strings.ContainsRune(to, 0) {
		return refused(at, "it is a link to nowhere")
	}
	name, err := t.place(at, m)
	if err != nil {
		return err
	}
	return t.described(at, m, extract.Symlink(t.fd, name, to, m))
}

func (t *tree) fifo(at string, m extract.Meta) error {
	name, err := t.place(at, m)
	if err != nil {
		return err
	}
	return t.described(at, m, extract.Fifo(t.fd, name, m))
}

// link makes a second name of a file of this layer. A file of a layer below is copied.
func (t *tree) link(at, to string) error {
	if err := t.enter(parent(at)); err != nil {
		return err
	}
	dir, err := t.open(parent(to))
	if err != nil && !none(err) {
		return err
	}
	if err == nil {
		defer unix.Close(dir)
		is, st, err := look(dir, path.Base(to))
		switch {
		case err != nil:
			return err
		case is == aFolder, is == aWhiteout:
			return refused(at, "it is a hard link to %.300q, which is not a file", to)
		case is == aFile:
			return t.linkTo(at, dir, path.Base(to), st)
		}
	}
	n, found, err := t.find(to)
	switch {
	case err != nil:
		return err
	case !found || n.IsDir():
		return refused(at, "it is a hard link to %.300q, which is not a file before it", to)
	case n.Kind() == unix.S_IFLNK:
		return t.symlink(at, n.Target, metaOf(n))
	case n.Kind() == unix.S_IFIFO:
		return t.fifo(at, metaOf(n))
	case n.Kind() != unix.S_IFREG:
		return refused(at, "it is a hard link to %.300q, which is not a file", to)
	}
	if t.budget.copied -= n.Size; t.budget.copied < 0 {
		return bad("it has more than %d bytes", int64(maxBytes))
	}
	f, err := t.view.Open(n)
	if err != nil {
		return err
	}
	return errors.Join(t.file(at, metaOf(n), f, n.Size), f.Close())
}

// linkTo makes a second name of a file that is in an open folder.
func (t *tree) linkTo(at string, dir int, file string, st unix.Stat_t) error {
	if _, now, err := look(t.fd, path.Base(at)); err == nil && now.Dev == st.Dev && now.Ino == st.Ino {
		return nil // it is that name
	}
	name, err := t.place(at, extract.Meta{}) // its attributes are counted
	if err != nil {
		return err
	}
	err = unix.Linkat(dir, file, t.fd, name, 0)
	if errors.Is(err, unix.ENOENT) {
		return refused(at, "it replaces the folder of the file that it is a hard link to")
	}
	return err
}

// remove removes a path from this layer, and hides it in those below.
func (t *tree) remove(at string) error {
	fd, err := t.open(parent(at))
	if err == nil {
		if err := t.hold(fd, parent(at)); err != nil {
			return err
		}
		is, _, err := look(t.fd, path.Base(at))
		if err != nil || is == aWhiteout {
			return err
		}
		if err := t.clear(path.Base(at), is); err != nil {
			return err
		}
	} else if !none(err) {
		return err
	}
	return t.hide(at)
}

// whiteout hides what the layers below have at a path. This layer's own file stays.
func (t *tree) whiteout(at string) error {
	fd, err := t.open(parent(at))
	if err == nil {
		err := t.hold(fd, parent(at))
		if err != nil {
			return err
		}
		is, _, err := look(t.fd, path.Base(at))
		switch {
		case err != nil || is == aWhiteout || is == aFile:
			return err
		case is == aFolder:
			return t.opaque(at)
		}
	} else if !none(err) {
		return err
	}
	return t.hide(at)
}

// hide makes a whiteout of a name that only the layers below have.
func (t *tree) hide(at string) error {
	_, found, err := t.find(at)
	if err != nil || !found {
		return err
	}
	if err := t.budget.file(extract.Meta{}); err != nil {
		return err
	}
	if err := t.enter(parent(at)); err != nil {
		return err
	}
	return extract.Whiteout(t.fd, path.Base(at))
}

// opaque hides everything that the layers below have in a folder.
func (t *tree) opaque(at string) error {
	if err := t.enter(at); err != nil {
		return err
	}
	switch {
	case len(t.lower) == 0:
		return nil
	case at == "":
		return t.opaqueRoot()
	}
	var mark [1]byte
	if n, err := unix.Fgetxattr(t.fd, extract.OpaqueMark(t.user), mark[:]); err == nil && n == 1 {
		return nil
	}
	if err := extract.Opaque(t.fd, t.user); err != nil {
		return err
	}
	return clean(t.fd, "", t.visit)
}

// opaqueRoot is opaque for the root. An overlay takes no mark on its root, so each name
// in it is hidden.
func (t *tree) opaqueRoot() error {
	if t.rootOpaque {
		return nil
	}
	t.rootOpaque = true
	for _, dir := range t.lower {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		for err == nil {
			var names []string
			names, err = f.Readdirnames(1024)
			for _, name := range names {
				if err := errors.Join(t.visit(), t.whiteout(name)); err != nil {
					return errors.Join(err, f.Close())
				}
			}
		}
		if err != io.EOF {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// visit counts a name that is looked at.
func (t *tree) visit() error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	return t.budget.step()
}

// clean removes an overlay's marks from a folder that lies over nothing: the kernel would list
// the whiteouts. It also removes the attribute mark from the folders below. It calls visit for
// each name; an error of visit ends it.
func clean(dir int, mark string, visit func() error) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	var before unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return err
	}
	removed := false
	for {
		names, err := f.Readdirnames(1024)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := visit(); err != nil {
				return err
			}
			is, _, err := look(fd, name)
			switch {
			case err != nil:
				return err
			case is == aWhiteout:
				removed = true
				if err := unix.Unlinkat(fd, name, 0); err != nil {
					return err
				}
			case is == aFolder:
				sub, err := extract.Open(fd, name)
				if err == nil && mark != "" {
					if err = unix.Fremovexattr(sub, mark); errors.Is(err, unix.ENODATA) {
						err = nil
					}
				}
				if err == nil {
					err = clean(sub, mark, visit)
				}
				if sub >= 0 {
					err = errors.Join(err, unix.Close(sub))
				}
				if err != nil {
					return err
				}
			}
		}
	}
	if !removed {
		return nil
	}
	return extract.SetTimes(fd, []unix.Timespec{before.Atim, before.Mtim})
}

// refused says which file of a layer can't be.
func refused(at, format string, args ...any) error {
	return bad("%.300q: %s", at, fmt.Sprintf(format, args...))
}

// largeAttr is the size from which an attribute may be too large for a file system. The
// file system's error is then that there is no space.
const largeAttr = 2 << 10

// attr says what becomes of an attribute that a file can't have.
func (t *tree) attr(at string) func(string, error) error {
	return func(name string, err error) error {
		switch {
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
			return nil // it is for other systems
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
			return refused(at, "its attribute %.100q can't be set here: %v", name, err)
		}
		return &attrError{name, err}
	}
}

// attrError says which attribute could not be given.
type attrError struct {
	name string
	err  error
}

func (e *attrError) Error() string { return fmt.Sprintf("attribute %.100q: %v", e.name, e.err) }
func (e *attrError) Unwrap() error { return e.err }

// described says whose fault it is that a file can't be made what it should be.
func (t *tree) described(at string, m extract.Meta, err error) error {
	if owner, ok := errors.AsType[*extract.OwnerError](err); ok && errors.Is(owner, unix.EINVAL) {
		return fail.Newf("image_bad", "run the server as root, or give its account more ids in /etc/subuid and /etc/subgid; see: cove doctor",
			"%.300q belongs to user %d and group %d, which this server's user namespace does not have", at, m.UID, m.GID)
	}
	if a, ok := errors.AsType[*attrError](err); ok && errors.Is(err, unix.ENOSPC) && len(m.Attrs[a.name]) > largeAttr {
		return refused(at, "its attribute %.100q is too large", a.name)
	}
	return err
}
