package layers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Merge makes the folder dst, which must not exist, a layer that is the same as others
// on top of each other, the lowest first. Files are linked, not copied, so dst must be
// on the layers' file system. The layers are not changed. A file that was renamed or
// deleted stays so over any layers below. Folders may be nested to any depth. userXattr
// is as in Overlay. On an error there is no dst, but names that begin with its name and
// a dot may be left beside it.
func Merge(dst string, layers []string, userXattr bool) error {
	return merge(dst, layers, userXattr, link)
}

// merge is Merge. put puts a file of any kind but a folder in another folder, unless something is
// there.
func merge(dst string, layers []string, userXattr bool, put func(from, to int, name string) error) error {
	made := dst + ".merge"
	err := Remove(made)
	if err == nil {
		err = os.Mkdir(made, 0o700)
	}
	if err == nil {
		m := merger{o: Overlay{UserXattr: userXattr}, put: put}
		err = errors.Join(m.merge(made, layers), m.close())
	}
	if err == nil {
		err = os.Rename(made, dst)
	}
	if err != nil {
		return fmt.Errorf("merge layers: %w", err)
	}
	return nil
}

// merger walks the merged tree of some layers, as the kernel would show it, and makes
// it once more. It looks names up in open folders. The folders above the last few on
// its way down are closed, and opened again on the way back.
type merger struct {
	o      Overlay
	put    func(from, to int, name string) error
	roots  []*folder // the layers' topmost ones, the topmost layer's first; always open
	levels []merged  // from the topmost folder down
	closed int       // how many levels after the first one are closed
	open   int       // folders of levels
}

// merged is a folder that is being made.
type merged struct {
	to   *folder
	from []*folder // what it is made of, topmost first
	dirs []subdir  // still to be made what they should be
}

// subdir is a folder in a folder that is being made. The layers before from don't have
// it.
type subdir struct {
	name string
	from int
}

// folder is one of a layer.
type folder struct {
	dir   *os.File // nil: it is closed
	id    inode
	layer int     // of merger.roots
	in    *folder // nil: it is the topmost one
	name  string
}

func (f *folder) fd() int { return int(f.dir.Fd()) }

// openFolder opens a folder at a path below an open folder. The error is ENOTDIR or
// ELOOP if something else is there.
func openFolder(dir int, name string) (*os.File, inode, error) {
	fd, err := openBelow(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, inode{}, err
	}
	f := os.NewFile(uintptr(fd), FDPath(fd)) // a file that is listed without its kind is found by this path
	st, err := fstat(fd)
	if err != nil {
		return nil, inode{}, errors.Join(err, f.Close())
	}
	return f, inode{st.Dev, st.Ino}, nil
}

// sub opens a folder in an open one.
func (f *folder) sub(name string) (*folder, error) {
	dir, id, err := openFolder(f.fd(), name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &folder{dir: dir, id: id, layer: f.layer, in: f, name: name}, nil
}

// path is where a folder is in its layer.
func (f *folder) path() string {
	var names []string
	for ; f.in != nil; f = f.in {
		names = append(names, f.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

func (f *folder) close() error {
	if f.dir == nil {
		return nil
	}
	err := f.dir.Close()
	f.dir = nil
	return err
}

func (m *merger) close() (err error) {
	for _, l := range m.levels {
		err = errors.Join(err, m.closeLevel(&l))
	}
	for _, f := range m.roots {
		err = errors.Join(err, f.close())
	}
	return err
}

func (m *merger) closeLevel(l *merged) (err error) {
	for _, f := range l.from {
		if f.in != nil { // the roots are needed for what was renamed
			err = errors.Join(err, f.close())
		}
	}
	return errors.Join(err, l.to.close())
}

// merge fills a folder with what layers have, the lowest first.
func (m *merger) merge(dst string, layers []string) error {
	topmost := func(name string) (*folder, error) {
		dir, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		st, err := fstat(int(dir.Fd()))
		if err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		return &folder{dir: dir, id: inode{st.Dev, st.Ino}, layer: len(m.roots)}, nil
	}
	for _, layer := range slices.Backward(layers) {
		f, err := topmost(layer)
		if err != nil {
			return err
		}
		m.roots = append(m.roots, f)
	}
	to, err := topmost(dst)
	if err != nil {
		return err
	}
	if err := m.enter(merged{to: to, from: m.roots}); err != nil {
		return err
	}
	for len(m.levels) > 0 {
		l := &m.levels[len(m.levels)-1]
		if last := len(l.dirs) - 1; last >= 0 {
			next := l.dirs[last]
			l.dirs = l.dirs[:last]
			err = m.subdir(l, next)
		} else {
			err = m.leave()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// subdir makes a folder in one that is being made, and enters it.
func (m *merger) subdir(l *merged, d subdir) error {
	to, err := l.to.sub(d.name)
	if err != nil {
		return err
	}
	next := merged{to: to}
	found := lookup{name: d.name}
	if next.from, err = m.lookup(&found, l.from[d.from:]); err == nil {
		switch {
		case found.stop:
			err = unix.Fsetxattr(to.fd(), m.o.xattrPrefix()+"opaque", []byte("y"), 0)
		case found.name != d.name:
			err = unix.Fsetxattr(to.fd(), m.o.xattrPrefix()+"redirect", []byte(found.name), 0)
		}
		err = pathError("mark", d.name, err)
	}
	if err != nil {
		return errors.Join(err, m.closeLevel(&next))
	}
	return m.enter(next)
}

// lookup is View.lookup of a folder, by open ones.
func (m *merger) lookup(l *lookup, stack []*folder) (found []*folder, err error) {
	for i := 0; i < len(stack) && !l.stop; i++ {
		at := stack[i]
		f, err := m.in(l, at)
		if err != nil {
			return found, err
		}
		if f == nil {
			continue
		}
		found = append(found, f)
		if strings.HasPrefix(l.name, "/") { // the rest is found from the root
			stack, i = m.roots, at.layer
		}
	}
	return found, nil
}

// in looks a name up in a folder of one layer, part by part if the name is a path.
func (m *merger) in(l *lookup, at *folder) (*folder, error) {
	parts := l.parts()
	for i, part := range parts {
		f, err := at.sub(part)
		if i > 0 {
			err = errors.Join(err, at.close())
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil, nil
		case gone(err): // something else is there
			l.stop = true
			return nil, nil
		case err != nil:
			return nil, err
		}
		prefix := m.o.xattrPrefix()
		if err := l.folder(parts[i+1:], mark(f.fd(), prefix+"opaque"), mark(f.fd(), prefix+"redirect")); err != nil {
			return nil, errors.Join(pathError("open", part, err), f.close())
		}
		at = f
	}
	return at, nil
}

// enter makes all that a folder should have, except for the content of its subfolders.
func (m *merger) enter(l merged) error {
	m.levels = append(m.levels, l)
	m.open += 1 + len(l.from)
	for last := len(m.levels) - 1; m.open > openAtOnce && m.closed+1 < last-1; {
		m.closed++
		above := &m.levels[m.closed]
		m.open -= 1 + len(above.from)
		if err := m.closeLevel(above); err != nil {
			return err
		}
	}
	now := &m.levels[len(m.levels)-1]
	for i, from := range now.from {
		for {
			entries, err := from.dir.ReadDir(1024)
			for _, e := range entries {
				if !e.IsDir() {
					if err := m.put(from.fd(), now.to.fd(), e.Name()); err != nil {
						return err
					}
				} else if err := unix.Mkdirat(now.to.fd(), e.Name(), 0o700); err == nil {
					now.dirs = append(now.dirs, subdir{e.Name(), i})
				} else if !errors.Is(err, unix.EEXIST) { // else a layer above has it
					return pathError("mkdir", e.Name(), err)
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return m.o.copyMeta(now.from[0].fd(), now.to.fd())
}

// leave goes back to the folder above.
func (m *merger) leave() error {
	last := len(m.levels) - 1
	from := &m.levels[last]
	if last > 1 && m.closed == last-1 {
		if err := m.reopen(&m.levels[last-1], from); err != nil {
			return err
		}
		m.closed--
	}
	m.open -= 1 + len(from.from)
	err := m.closeLevel(from)
	m.levels = m.levels[:last]
	return err
}

// reopen opens the folders of a level again, from those of the one below it.
func (m *merger) reopen(l, below *merged) (err error) {
	m.open += 1 + len(l.from)
	if l.to.dir, err = above(below.to.dir, l.to.id); err != nil {
		return err
	}
	for _, f := range l.from {
		in := slices.IndexFunc(below.from, func(b *folder) bool { return b.in == f })
		if in >= 0 {
			f.dir, err = above(below.from[in].dir, f.id)
		} else { // the folder below has none of this layer, or one from elsewhere in the layer
			var fd int
			if fd, err = openBelow(m.roots[f.layer].fd(), f.path(), unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
				f.dir, err = same(fd, f.id)
			}
		}
		if err != nil {
			return pathError("open", f.name, err)
		}
	}
	return nil
}

// link links a file of any kind but a folder, unless something is there. One that has
// as many links as its file system can bear is made anew, if it is a mark of something
// deleted.
func link(from, to int, name string) error {
	err := unix.Linkat(from, name, to, name, 0)
	if errors.Is(err, unix.EMLINK) {
		var st unix.Stat_t
		if unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
			err = unix.Mknodat(to, name, unix.S_IFCHR, 0)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return pathError("link", name, err)
}

// copyMeta gives an open folder the owner, mode, times and attributes of another
// folder. It leaves out the overlay's marks opaque and redirect.
func (o Overlay) copyMeta(from, to int) error {
	st, err := fstat(from)
	if err != nil {
		return err
	}
	below := func(name string) bool { return name == o.xattrPrefix()+"opaque" || name == o.xattrPrefix()+"redirect" }
	want, err := attributesBut(from, below)
	if err != nil {
		return err
	}
	have, err := attributesBut(to, below)
	if err != nil {
		return err
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			if err := unix.Fremovexattr(to, name); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	for name, value := range want {
		if have[name] == value {
			continue
		}
		if err := unix.Fsetxattr(to, name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, FDPath(to), []unix.Timespec{st.Atim, st.Mtim}, 0)
}
