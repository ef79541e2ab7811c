// Package source takes files for a COPY or an ADD from a tree: a build's context, or the files of
// an image. It writes the layer that they make over a parent image. It writes no other file: it
// works the layer out from the trees.
//
// A tree may come from anybody. No name and no symbolic link leads out of it. Limits bound what
// is read, followed and remembered.
package source

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// Tree is a tree of files. Paths in it are clean and relative, and "" is its root. No symbolic
// link in them is followed. A Tree is for one goroutine.
type Tree interface {
	Lstat(at string) (Info, error)         // fs.ErrNotExist: there is none
	Names(at string) ([]string, error)     // of a folder, sorted
	Open(at string) (io.ReadCloser, error) // a regular file
}

// Info is what a file is.
type Info struct {
	Mode     fs.FileMode
	UID, GID int
	Size     int64
	ModTime  time.Time
	Target   string            // of a symbolic link
	Attrs    map[string]string // extended attributes
	Inode    [2]uint64         // zero: it has one name only

}

// Empty is a tree of nothing: scratch.
type Empty struct{}

// Lstat is Tree's.
func (Empty) Lstat(at string) (Info, error) {
	if at == "" {
		return Info{Mode: fs.ModeDir | 0o755}, nil
	}
	return Info{}, fs.ErrNotExist
}

// Names is Tree's.
func (Empty) Names(string) ([]string, error) { return nil, nil }

// Open is Tree's.
func (Empty) Open(string) (io.ReadCloser, error) { return nil, fs.ErrNotExist }

// Context is the folder of a build's context. All its files belong to root, as in Docker.
// Files that Ignored reports do not exist in it.
type Context struct {
	Root    *os.Root
	Ignored func(at string) bool // nil: none
}

// Lstat is Tree's.
func (c Context) Lstat(at string) (Info, error) {
	if at != "" && c.Ignored != nil && c.Ignored(at) {
		// An ignored folder exists, because files in it may not be ignored.
		if info, err := c.Root.Lstat(at); err != nil || !info.IsDir() {
			return Info{}, fs.ErrNotExist
		}
	}
	info, err := c.Root.Lstat(dotted(at))
	if err != nil {
		return Info{}, absent(err)
	}
	out := Info{Mode: info.Mode(), Size: info.Size(), ModTime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && info.Mode().IsRegular() {
		out.Inode = [2]uint64{st.Dev, st.Ino}
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		out.Target, err = c.Root.Readlink(at)
	}
	return out, err
}

// Names is Tree's.
func (c Context) Names(at string) ([]string, error) {
	f, err := c.Root.Open(dotted(at))
	if err != nil {
		return nil, absent(err)
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, f.Close())
}

// Open is Tree's.
func (c Context) Open(at string) (io.ReadCloser, error) {
	f, err := c.Root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	return regular(f, err, at)
}

func regular(f *os.File, err error, at string) (io.ReadCloser, error) {
	if err != nil {
		return nil, absent(err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(&fs.PathError{Op: "read", Path: at, Err: fs.ErrInvalid}, err, f.Close())
	}
	return f, nil
}

func dotted(at string) string {
	if at == "" {
		return "."
	}
	return at
}

// absent makes all errors that say that there is nothing fs.ErrNotExist.
func absent(err error) error {
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		return fs.ErrNotExist
	}
	return err
}

// Image is the tree that the layers of an image show. NewImage makes it.
type Image struct {
	view    *layers.View
	folders map[string]layers.Node // that were looked up
}

// NewImage is the tree of a view, which stays the caller's.
func NewImage(v *layers.View) *Image { return &Image{view: v, folders: map[string]layers.Node{}} }

// maxFolders bounds what an Image remembers.
const maxFolders = 4096

func (i *Image) find(at string) (layers.Node, error) {
	if at == "" {
		return i.view.Root(), nil
	}
	if n, ok := i.folders[at]; ok {
		return n, nil
	}
	dir, name := split(at)
	parent, err := i.find(dir)
	if err != nil {
		return layers.Node{}, err
	}
	if !parent.IsDir() {
		return layers.Node{}, fs.ErrNotExist
	}
	n, found, err := i.view.Lookup(parent, name)
	if err != nil {
		return n, err
	}
	if !found {
		return n, fs.ErrNotExist
	}
	if n.IsDir() {
		if len(i.folders) >= maxFolders {
			clear(i.folders)
		}
		i.folders[at] = n
	}
	return n, nil
}

// Lstat is Tree's.
func (i *Image) Lstat(at string) (Info, error) {
	n, err := i.find(at)
	if err != nil {
		return Info{}, err
	}
	info := Info{Mode: fs.FileMode(n.Mode & 0o777), UID: int(n.UID), GID: int(n.GID), Size: n.Size, ModTime: time.Unix(0, n.ModTime), Target: n.Target, Attrs: n.Attrs}
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if n.Mode&bit != 0 {
			info.Mode |= flag
		}
	}
	switch n.Kind() {
	case unix.S_IFDIR:
		info.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		info.Mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		info.Mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		info.Mode |= fs.ModeSocket
	case unix.S_IFREG:
		if dev, ino, links := n.Inode(); links > 1 {
			info.Inode = [2]uint64{dev, ino}
		}
	default:
		info.Mode |= fs.ModeDevice
	}
	return info, nil
}

// Names is Tree's.
func (i *Image) Names(at string) ([]string, error) {
	n, err := i.find(at)
	if err != nil {
		return nil, err
	}
	all, err := i.view.Names(n, true)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all { // a name that a layer has deleted is listed, too
		if _, err := i.find(path.Join(at, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// Open is Tree's.
func (i *Image) Open(at string) (io.ReadCloser, error) {
	n, err := i.find(at)
	if err != nil {
		return nil, err
	}
	return i.view.Open(n)
}

func split(at string) (dir, name string) {
	i := strings.LastIndexByte(at, '/')
	return at[:max(i, 0)], at[i+1:]
}

func refused(format string, args ...any) error {
	return fail.Newf("dockerfile_bad", "", format, args...)
}

// maxLinks is how many symbolic links a path may lead through, as for the kernel.
const maxLinks = 40

// maxParts is how many names follow looks up at most.
const maxParts = 4096

// follow resolves the symbolic links of a path. No link leads above the root. A name that
// does not exist stays as it is.
func follow(lstat func(string) (Info, error), at string) (string, error) {
	rest := strings.Split(at, "/")
	cur, links, parts := "", 0, 0
	for len(rest) > 0 {
		if parts++; parts > maxParts {
			return "", refused("%.300q leads through more than %d names", at, maxParts)
		}
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			cur, _ = split(cur)
			continue
		}
		next := path.Join(cur, part)
		info, err := lstat(next)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err != nil || info.Mode&fs.ModeSymlink == 0 {
			cur = next
			continue
		}
		if links++; links > maxLinks {
			return "", refused("%.300q leads through more than %d symbolic links", at, maxLinks)
		}
		if strings.HasPrefix(info.Target, "/") {
			cur = ""
		}
		rest = append(strings.Split(info.Target, "/"), rest...)
	}
	return cur, nil
}
