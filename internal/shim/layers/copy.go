package layers

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MergeCopies is Merge, but it copies files instead of linking them. So a
// file of the layers keeps its number of links and its times, even that of
// its last change. Names of one file are names of one copy. Copies share
// their blocks with the layers if the file system can do so. Before the data
// of a file is copied, claim is called with the bytes of the disk that the
// copy takes. An error of claim ends the merge.
func MergeCopies(dst string, layers []string, userXattr bool, claim func(bytes int64) error) (err error) {
	several := dst + ".links"
	c := &copier{o: Overlay{UserXattr: userXattr}, several: several, seen: map[inode]bool{}, claim: claim}
	err = Remove(several)
	if err == nil {
		err = os.Mkdir(several, 0o700)
	}
	if err == nil {
		err = merge(dst, layers, userXattr, c.file)
	}
	return errors.Join(err, Remove(several))
}

// copier copies files of all kinds but folders.
type copier struct {
	o       Overlay
	several string         // folder that has the copy of each file of several names, so that it can be linked
	seen    map[inode]bool // those that are in it
	claim   func(bytes int64) error
}

// file copies a file to another folder, unless something is there.
func (c *copier) file(from, to int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(to, name, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return pathError("copy", name, err) // nil: a layer above has it
	}
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("copy", name, err)
	}
	if st.Nlink < 2 || isWhiteout(st) {
		return pathError("copy", name, c.make(from, to, name, st))
	}
	id := inode{st.Dev, st.Ino}
	kept := fmt.Sprintf("%s/%d-%d", c.several, id.dev, id.ino)
	if c.seen[id] {
		err := unix.Linkat(unix.AT_FDCWD, kept, to, name, 0)
		if !errors.Is(err, unix.EMLINK) {
			return pathError("link", name, err)
		}
		if err := unix.Unlink(kept); err != nil { // the names that follow are another copy's
			return pathError("link", name, err)
		}
	}
	err := c.make(from, to, name, st)
	if err == nil {
		err = unix.Linkat(to, name, unix.AT_FDCWD, kept, 0)
	}
	c.seen[id] = true
	return pathError("copy", name, err)
}

func isWhiteout(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// make makes one copy.
func (c *copier) make(from, to int, name string, st unix.Stat_t) error {
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.regular(from, to, name, st)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		var n int
		if n, err = unix.Readlinkat(from, name, buf); err == nil {
			err = unix.Symlinkat(string(buf[:n]), to, name)
		}
	default:
		err = unix.Mknodat(to, name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
	}
	if err == nil {
		err = unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		err = unix.Fchmodat(to, name, st.Mode&0o7777, 0)
	}
	if err == nil {
		err = unix.UtimesNanoAt(to, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	return err
}

// regular copies a file with its data, holes and all.
func (c *copier) regular(from, to int, name string, st unix.Stat_t) error {
	if err := c.claim(st.Blocks * 512); err != nil {
		return err
	}
	fd, err := openIn(from, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	was, err := regularFile(fd, name)
	if err != nil {
		return err
	}
	defer was.Close()
	fd, err = unix.Openat(to, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	made := os.NewFile(uintptr(fd), inBrief(name))
	err = unix.IoctlFileClone(fd, int(was.Fd()))
	if err != nil { // the file system can't share blocks
		err = made.Truncate(st.Size)
		if err == nil {
			err = readParts(was, st.Size, func(at int64, b []byte) error {
				_, err := made.WriteAt(b, at)
				return err
			})
		}
	}
	if err == nil {
		err = c.o.copyMeta(int(was.Fd()), fd)
	}
	return errors.Join(err, made.Close())
}
