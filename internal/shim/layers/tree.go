package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tree reads a folder that a sandbox has written, or is writing. No name leads out of
// the folder, even if the name changes while it is looked at. Paths in it are
// slash-separated; "" is the folder itself.
type tree struct {
	dir string
	fd  int

	most int      // folders that stay open between calls
	kept []folded // each in the one before, not always right in it
}

// folded is a folder that stays open.
type folded struct {
	path string
	fd   int
}

func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &tree{dir: dir, fd: fd}, nil
}

// has reports whether the folder is one, or what another is in.
func (f folded) has(folder string) bool {
	return strings.HasPrefix(folder, f.path) && (len(folder) == len(f.path) || folder[len(f.path)] == '/')
}

func (t *tree) close() error { return errors.Join(t.forget(0), unix.Close(t.fd)) }

// forget closes the folders that stay open, except for the first ones.
func (t *tree) forget(but int) (err error) {
	for _, f := range t.kept[but:] {
		err = errors.Join(err, unix.Close(f.fd))
	}
	t.kept = t.kept[:but]
	return err
}

// near returns an open folder, and the rest of a path from there. If folders stay open, those right
// above what is at the path do.
func (t *tree) near(name string) (dir int, rest string, err error) {
	if t.most == 0 {
		return t.fd, name, nil
	}
	cut := strings.LastIndexByte(name, '/')
	if cut < 0 {
		return t.fd, name, nil
	}
	above := name[:cut]
	shared := len(t.kept) // that the path is in
	for shared > 0 && !t.kept[shared-1].has(above) {
		shared--
	}
	if err := t.forget(shared); err != nil {
		return -1, "", err
	}
	at, done := t.fd, 0
	if shared > 0 {
		at, done = t.kept[shared-1].fd, len(t.kept[shared-1].path)+1
	}
	var ends []int // of the last folders of above that are still to be opened
	for end := len(above); end > done && len(ends) < t.most; end = strings.LastIndexByte(above[:end], '/') {
		ends = append(ends, end)
	}
	for _, end := range slices.Backward(ends) {
		if at, err = openBelow(at, above[done:end], unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, "", err
		}
		done = end + 1
		t.kept = append(t.kept, folded{above[:end], at})
	}
	if over := len(t.kept) - t.most; over > 0 {
		for _, f := range t.kept[:over] {
			err = errors.Join(err, unix.Close(f.fd))
		}
		t.kept = slices.Delete(t.kept, 0, over)
	}
	return at, name[cut+1:], err
}

// maxPath bounds a path in a tree. It may be longer than a path of the kernel's. It
// also bounds the depth of folders that are walked by paths.
const maxPath = 128 << 10

// ErrPathTooLong is a path in a layer that is longer than it can be worked with.
var ErrPathTooLong = errors.New("the path is too long")

// openat opens what is at a path, a symbolic link itself.
func (t *tree) openat(name string, flags uint64) (int, error) {
	err := ErrPathTooLong
	if len(name) <= maxPath {
		var dir, fd int
		var rest string
		if dir, rest, err = t.near(name); err == nil {
			fd, err = openBelow(dir, rest, flags)
		}
		if err == nil {
			return fd, nil
		}
	}
	return -1, pathError("open", name, err)
}

// openBelow is openIn of a path of any length.
func openBelow(dir int, name string, flags uint64) (int, error) {
	at, rest := dir, name
	for len(rest) >= unix.PathMax { // more than the kernel takes at once
		cut := strings.LastIndexByte(rest[:unix.PathMax-1], '/')
		if cut < 0 {
			break // no name is that long
		}
		next, err := openIn(at, rest[:cut], unix.O_PATH|unix.O_DIRECTORY)
		if at != dir {
			err = errors.Join(err, unix.Close(at))
		}
		if err != nil {
			return -1, err
		}
		at, rest = next, rest[cut+1:]
	}
	fd, err := openIn(at, rest, flags)
	if at != dir {
		err = errors.Join(err, unix.Close(at))
	}
	return fd, err
}

// openIn opens what is at a path below an open folder, a symbolic link itself.
func openIn(dir int, name string, flags uint64) (int, error) {
	if name == "" {
		name = "."
	}
	how := unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) { // it was renamed meanwhile
			continue
		}
		return fd, err
	}
}

// inBrief is a path for a message: one that is long has its middle left out.
func inBrief(path string) string {
	const ends = 100
	if len(path) > 3*ends {
		path = path[:ends] + "…" + path[len(path)-ends:]
	}
	return strings.Trim(strconv.Quote(path), `"`)
}

// gone reports whether an error of a tree says that there is nothing at the path,
// or not any more.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// at calls f with what is at a path, to be looked at and not read.
func (t *tree) at(name string, f func(fd int) error) error {
	fd, err := t.openat(name, unix.O_PATH)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

func fstat(fd int) (st unix.Stat_t, err error) {
	return st, unix.Fstat(fd, &st)
}

// open opens a regular file.
func (t *tree) open(name string) (*os.File, error) {
	fd, err := t.openat(name, unix.O_RDONLY|unix.O_NONBLOCK) // were it a FIFO by now, this would not wait
	if err != nil {
		return nil, err
	}
	return regularFile(fd, name)
}

// regularFile takes an open file over. If it is not a regular file, it is closed, and
// refused.
func regularFile(fd int, name string) (*os.File, error) {
	f := os.NewFile(uintptr(fd), inBrief(name))
	if st, err := fstat(fd); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(&fs.PathError{Op: "read", Path: inBrief(name), Err: fs.ErrInvalid}, err, f.Close())
	}
	return f, nil
}

// names lists a folder, sorted.
func (t *tree) names(dir string) ([]string, error) {
	fd, err := t.openat(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), inBrief(dir))
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, f.Close())
}

// FDPath names a file that this process has open, to the calls that take no descriptor.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// attributes are the extended attributes of an open file, those of an overlay aside.
func attributes(fd int) (map[string]string, error) {
	return attributesBut(fd, func(name string) bool {
		return strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.")
	})
}

// attributesBut are the extended attributes of an open file, some aside.
func attributesBut(fd int, aside func(name string) bool) (map[string]string, error) {
	all := map[string]string{}
	name := FDPath(fd)
	list, err := grown(func(buf []byte) (int, error) { return unix.Listxattr(name, buf) })
	if err != nil {
		return nil, ignoreUnsupported(err)
	}
	for attr := range strings.SplitSeq(list, "\x00") {
		if attr == "" || aside(attr) {
			continue
		}
		value, err := grown(func(buf []byte) (int, error) { return unix.Getxattr(name, attr, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue // it has just been removed
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", attr, err)
		}
		all[attr] = value
	}
	return all, nil
}

// grown reads something of a length that is not known.
func grown(read func([]byte) (int, error)) (string, error) {
	for size := 1024; ; size *= 4 {
		buf := make([]byte, size)
		n, err := read(buf)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
}

func ignoreUnsupported(err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// mark reads one of the overlay's own attributes of an open folder.
func mark(fd int, name string) string {
	value, err := grown(func(buf []byte) (int, error) { return unix.Getxattr(FDPath(fd), name, buf) })
	if err != nil {
		return ""
	}
	return value
}

func target(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// A Stat is what a file is, besides its content.
type Stat struct {
	Mode     uint32 // kind and permissions, as in stat(2)
	UID, GID uint32
	Size     int64 // of a regular file; else 0
	ModTime  int64 // in nanoseconds
	Rdev     uint64
	Target   string            // of a symbolic link
	Attrs    map[string]string // extended ones, except the overlay's own

	blocks   int64 // of 512 bytes, on the disk
	dev, ino uint64
	links    uint64
}

// Kind is the file's kind, as in Mode.
func (s *Stat) Kind() uint32 { return s.Mode & unix.S_IFMT }

// IsDir reports whether it is a folder.
func (s *Stat) IsDir() bool { return s.Kind() == unix.S_IFDIR }

// Inode tells files of the machine apart; links is how many names one has, in any
// layer.
func (s *Stat) Inode() (dev, ino, links uint64) { return s.dev, s.ino, s.links }

func (s *Stat) whiteout() bool { return s.Kind() == unix.S_IFCHR && s.Rdev == 0 }

// statOf describes an open file, without its extended attributes.
func statOf(fd int) (Stat, error) {
	st, err := fstat(fd)
	if err != nil {
		return Stat{}, err
	}
	s := Stat{Mode: st.Mode, UID: st.Uid, GID: st.Gid, ModTime: st.Mtim.Nano(), blocks: st.Blocks, dev: st.Dev, ino: st.Ino, links: st.Nlink}
	switch s.Kind() {
	case unix.S_IFREG:
		s.Size = st.Size
	case unix.S_IFCHR, unix.S_IFBLK:
		s.Rdev = st.Rdev
	case unix.S_IFLNK:
		s.Target, err = target(fd)
	}
	return s, err
}

// differences names the properties that differ between two files. The times of folders
// are not compared: they change with the folders' content.
func differences(a, b *Stat) (what []string) {
	note := func(differ bool, name string) {
		if differ {
			what = append(what, name)
		}
	}
	note(a.Kind() != b.Kind() || a.Rdev != b.Rdev, "type")
	note(a.Size != b.Size, "size")
	note(a.Target != b.Target, "target")
	note(a.Mode&0o7777 != b.Mode&0o7777, "mode")
	note(a.UID != b.UID || a.GID != b.GID, "owner")
	note(!maps.Equal(a.Attrs, b.Attrs), "attributes")
	note(!a.IsDir() && a.ModTime != b.ModTime, "time")
	return what
}
