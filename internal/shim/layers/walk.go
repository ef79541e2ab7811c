package layers

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// openAtOnce is how many folders a walk has open at once. Those above them are
// closed, and opened again from below.
const openAtOnce = 64

// walker goes through what a layer has, in the order of its list. Names are looked up
// in open folders, and it is no matter how deep these are in each other.
type walker struct {
	ctx    context.Context
	prefix string
	visit  func(*met) error
	levels []level // from the mount's folder down
	closed int     // how many of them are closed, from the first one on
}

// level is a folder that is being gone through.
type level struct {
	dir   *os.File
	id    inode
	names []string // still to be visited
}

// met is what a walk visits.
type met struct {
	record
	dir  int    // the folder that it is in
	file string // its name in there
}

// walk visits what a layer has. A file that is met is open only during its visit.
func (d Dir) walk(ctx context.Context, visit func(*met) error) error {
	t, err := openTree(d.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // of a sprite that has never run
	}
	if err != nil {
		return err
	}
	w := walker{ctx: ctx, prefix: Overlay{UserXattr: d.UserXattr}.xattrPrefix(), visit: visit}
	mounts, err := t.names("")
	for _, mount := range mounts {
		if err == nil {
			err = w.mount(t, mount)
		}
	}
	return errors.Join(err, t.close())
}

func (w *walker) mount(t *tree, mount string) (err error) {
	fd, err := openIn(t.fd, mount+"/upper", unix.O_PATH)
	if gone(err) {
		return nil
	}
	if err == nil {
		err = unix.Close(fd)
	}
	if err == nil {
		err = w.enter(t.fd, mount)
	}
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range w.levels[w.closed:] {
			err = errors.Join(err, l.dir.Close())
		}
		w.levels, w.closed = nil, 0
	}()
	w.levels[0].names = []string{"upper"}
	for len(w.levels) > 0 {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		l := &w.levels[len(w.levels)-1]
		if len(l.names) == 0 {
			if err := w.leave(); err != nil {
				return err
			}
			continue
		}
		m := met{dir: int(l.dir.Fd()), file: l.names[0]}
		l.names = l.names[1:]
		m.depth, m.name = len(w.levels)-1, m.file
		if m.depth == 0 {
			m.name = mount
		}
		if err := w.meet(&m); err != nil {
			return err
		}
	}
	return nil
}

// meet visits one file, and enters it if it is a folder.
func (w *walker) meet(m *met) error {
	fd, err := openIn(m.dir, m.file, unix.O_PATH)
	if err != nil {
		return &fs.PathError{Op: "open", Path: inBrief(m.file), Err: err}
	}
	if m.Stat, err = statOf(fd); err == nil {
		if m.IsDir() {
			m.opaque, m.redirect = mark(fd, w.prefix+"opaque"), mark(fd, w.prefix+"redirect")
		}
		m.Attrs, err = attributes(fd)
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	if err := w.visit(m); err != nil || !m.IsDir() {
		return err
	}
	return w.enter(m.dir, m.file)
}

func (w *walker) enter(dir int, name string) error {
	fd, err := openIn(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return &fs.PathError{Op: "open", Path: inBrief(name), Err: err}
	}
	f := os.NewFile(uintptr(fd), inBrief(name))
	st, err := fstat(fd)
	var names []string
	for err == nil {
		var more []string
		more, err = f.Readdirnames(4096)
		names = append(names, more...)
		if err == nil && w.ctx.Err() != nil {
			err = context.Cause(w.ctx)
		}
	}
	if err != io.EOF {
		return errors.Join(err, f.Close())
	}
	slices.Sort(names)
	w.levels = append(w.levels, level{f, inode{st.Dev, st.Ino}, names})
	if len(w.levels)-w.closed <= openAtOnce {
		return nil
	}
	w.closed++
	return w.levels[w.closed-1].dir.Close()
}

// leave goes back to the folder above.
func (w *walker) leave() error {
	last := len(w.levels) - 1
	from := w.levels[last].dir
	if last > 0 && w.closed == last {
		to := &w.levels[last-1]
		dir, err := above(from, to.id)
		if err != nil {
			return err
		}
		to.dir = dir
		w.closed--
	}
	w.levels = w.levels[:last]
	return from.Close()
}

// above opens the folder that an open one is in, if it is what it was.
func above(f *os.File, was inode) (*os.File, error) {
	fd, err := unix.Openat(int(f.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", "..", err)
	}
	return same(fd, was)
}

// same takes an open folder over. If it is not the folder that was there, it is closed,
// and refused.
func same(fd int, was inode) (*os.File, error) {
	dir := os.NewFile(uintptr(fd), FDPath(fd))
	if st, err := fstat(fd); err != nil || was != (inode{st.Dev, st.Ino}) {
		return nil, errors.Join(errors.New("a folder of a sealed layer was moved"), err, dir.Close())
	}
	return dir, nil
}

// trail is the names on the way to a record.
type trail []string

// to goes to the next record of a walk, or of a list.
func (t *trail) to(r *record) { *t = append((*t)[:r.depth], r.name) }

// maxShown bounds a path that is shown.
const maxShown = unix.PathMax

// shown is a trail as a path in the sprite. If the path is longer than any path can be,
// its middle is left out.
func (t trail) shown() string {
	parts := slices.Clone(t[:1])
	if parts[0] == "root" {
		parts[0] = ""
	}
	rest := t[1:]
	size := len(parts[0])
	for i, name := range rest {
		if size += 1 + len(name); size > maxShown/2 && len(rest)-i > 1 {
			return path.Join("/", path.Join(append(parts, rest[:i]...)...), rest[i:].end())
		}
	}
	return path.Join("/", path.Join(append(parts, rest...)...))
}

// end is the last names, as many as are shown; a mark stands for those before.
func (t trail) end() string {
	size, from := 0, len(t)
	for from > 0 && size+1+len(t[from-1]) <= maxShown/2 {
		from--
		size += 1 + len(t[from])
	}
	if from > 0 {
		return "…/" + strings.Join(t[from:], "/")
	}
	return strings.Join(t, "/")
}
