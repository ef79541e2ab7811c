package filesync

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A tree is a folder; it reaches files below the folder, and never outside. It opens every
// folder on the way from the one above it, and follows no links. It keeps the folders of the
// last path open. It is for one goroutine.
type tree struct {
	root int
	dirs []openDir
}

type openDir struct {
	path string
	fd   int
}

const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openTree opens the folder root, which may be reached through links.
func openTree(root string) (*tree, error) {
	fd, err := again(func() (int, error) { return unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	return &tree{root: fd}, nil
}

// close closes everything.
func (t *tree) close() {
	t.forget("")
	_ = unix.Close(t.root)
}

// forget closes the folders that are not above name.
func (t *tree) forget(name string) {
	n := len(t.dirs)
	for n > 0 && (name == "" || t.dirs[n-1].path != name && !below(name, t.dirs[n-1].path)) {
		n--
		_ = unix.Close(t.dirs[n].fd)
	}
	t.dirs = t.dirs[:n]
}

// dir returns the open folder name, "." being the root. It stays the tree's.
func (t *tree) dir(name string) (int, error) {
	if name == "." {
		t.forget("")
		return t.root, nil
	}
	t.forget(name)
	at, done := t.root, ""
	if n := len(t.dirs); n > 0 {
		at, done = t.dirs[n-1].fd, t.dirs[n-1].path
	}
	if len(done) == len(name) {
		return at, nil
	}
	rest := name
	if done != "" {
		rest = name[len(done)+1:]
	}
	for part := range strings.SplitSeq(rest, "/") {
		if len(t.dirs) >= maxDepth {
			return -1, &fs.PathError{Op: "open", Path: name, Err: unix.ENAMETOOLONG}
		}
		fd, err := again(func() (int, error) { return unix.Openat(at, part, dirFlags, 0) })
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		done = path.Join(done, part)
		t.dirs = append(t.dirs, openDir{done, fd})
		at = fd
	}
	return at, nil
}

// at returns the open folder that a path is in, and its last name.
func (t *tree) at(name string) (int, string, error) {
	fd, err := t.dir(path.Dir(name))
	return fd, path.Base(name), err
}

// lstat describes a path, or the link itself. If nothing is there, the Entry has the type
// None.
func (t *tree) lstat(name string) (Entry, error) {
	fd, base, err := t.at(name)
	if err == nil {
		var st unix.Stat_t
		if st, err = statAt(fd, base); err == nil {
			e := entryOf(name, &st)
			if e.Type == Link {
				e.Target, err = readLink(fd, base)
			}
			return e, err
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return Entry{Path: name}, nil
	}
	return Entry{}, &fs.PathError{Op: "stat", Path: name, Err: err}
}

// special is the type of a path that exists and does not travel.
const special Type = 255

// entryOf is the entry of a path without its target.
func entryOf(name string, st *unix.Stat_t) Entry {
	e := Entry{Path: name, Mode: fs.FileMode(st.Mode) & modeMask, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = File, st.Size
	case unix.S_IFDIR:
		e.Type = Dir
	case unix.S_IFLNK:
		e.Type, e.Mode = Link, 0
	default:
		e.Type = special
	}
	return e
}

func statAt(dir int, base string) (st unix.Stat_t, err error) {
	_, err = again(func() (int, error) { return 0, unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func readLink(dir int, base string) (string, error) {
	buf := make([]byte, 256)
	for {
		n, err := again(func() (int, error) { return unix.Readlinkat(dir, base, buf) })
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
		buf = make([]byte, 2*len(buf))
	}
}

// open opens a regular file for reading; it never waits for the other end of a
// pipe, and never follows a link.
func (t *tree) open(name string) (*os.File, Entry, error) {
	fd, base, err := t.at(name)
	if err != nil {
		return nil, Entry{}, err
	}
	return openAt(fd, base, name)
}

func openAt(dir int, base, name string) (*os.File, Entry, error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, Entry{}, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, Entry{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	e := entryOf(name, &st)
	if e.Type != File {
		_ = unix.Close(fd)
		return nil, e, &fs.PathError{Op: "open", Path: name, Err: errNotFile}
	}
	return os.NewFile(uintptr(fd), name), e, nil
}

var errNotFile = errors.New("is not a file")

// readSmall reads a small file; empty if there is none, or it is not a small file.
func (t *tree) readSmall(dir, name string) string {
	fd, err := t.dir(path.Join(dir, "."))
	if err != nil {
		return ""
	}
	return readSmallAt(fd, name)
}

func readSmallAt(dir int, name string) string {
	f, e, err := openAt(dir, name, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if e.Size > maxIgnoreFile {
		return ""
	}
	buf := make([]byte, e.Size)
	n, _ := f.Read(buf)
	return string(buf[:max(n, 0)])
}

// again repeats a call that a signal interrupted.
func again(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// changeTime is a file's time of change, in nanoseconds.
func changeTime(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ctim.Nano()
	}
	return 0
}
