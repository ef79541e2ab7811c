package base

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The user namespace of an ordinary user's server lacks the ids that own the host's programs:
// in the namespace nobody owns them. Not even a sandbox's root may change such a folder, or
// run sudo. So the server's masks have all folders of programs, and its own root owns them. An
// overlay takes the owner of a folder from the topmost layer, and shows the files of all
// layers. So packages can be installed, replaced and removed. A mask also has copies of those
// files that do not work if nobody owns them.

// rooted are programs that are root's wherever they are, and become root when they run.
var rooted = []string{
	"sudo", "su", "passwd", "chsh", "chfn", "newgrp", "gpasswd", "mount", "umount", "newuidmap", "newgidmap", "pkexec", "fusermount", "fusermount3",
}

// rootedLibraries are folders of what sudo loads if it is root's.
var rootedLibraries = []string{"usr/libexec/sudo", "usr/lib/sudo", "usr/lib64/sudo"}

// maxRooted bounds the bytes of a file that is copied into a mask.
const maxRooted = 16 << 20

// copied is a file that a mask has of its own.
type copied struct {
	Path     string
	Mode     uint32
	UID, GID uint32
	Size     int64
	MTime    int64  // in nanoseconds
	Target   string // of a symbolic link
	times    [2]unix.Timespec
}

// copies lists the files that are copied into a mask which has the folders.
func (h *Hider) copies(found *findings) ([]copied, error) {
	if !h.Own {
		return h.closed(found)
	}
	var all []copied
	add := func(name string, setuid bool) error {
		var st unix.Stat_t
		if err := unix.Lstat(h.Files.path(name), &st); err != nil {
			return ignoreGone(name, err)
		}
		c := copied{Path: name, Mode: st.Mode, Size: st.Size, MTime: st.Mtim.Nano(), times: [2]unix.Timespec{st.Mtim, st.Mtim}}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if setuid && st.Mode&unix.S_ISUID == 0 || st.Mode&0o004 == 0 || st.Size > maxRooted {
				return nil
			}
			c.Mode &^= unix.S_ISGID // of a group that is not known here
		case unix.S_IFLNK:
			if setuid {
				return nil // the file that it leads to is copied
			}
			target, err := os.Readlink(h.Files.path(name))
			if err != nil {
				return ignoreGone(name, err)
			}
			c.Target = target
		default:
			return nil
		}
		all = append(all, c)
		return nil
	}
	for _, dir := range []string{"usr/bin", "usr/sbin", "bin", "sbin"} {
		if found.at[dir] == nil {
			continue
		}
		for _, name := range rooted {
			if err := add(path.Join(dir, name), true); err != nil {
				return nil, err
			}
		}
	}
	for _, dir := range rootedLibraries {
		if found.at[dir] == nil {
			continue
		}
		entries, err := os.ReadDir(h.Files.path(dir))
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if err := add(path.Join(dir, e.Name()), false); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, func(a, b copied) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// closed lists the programs that all users may start but not all may read, such as sudo on
// some systems. gVisor reads a program to start it. But a sandbox can't read those of the
// host's own files that others may not read: see layers.Overlay.Guard.
func (h *Hider) closed(found *findings) ([]copied, error) {
	var all []copied
	for _, f := range found.all {
		for _, name := range f.closed {
			var st unix.Stat_t
			if err := unix.Lstat(h.Files.path(name), &st); err != nil {
				if err := ignoreGone(name, err); err != nil {
					return nil, err
				}
				continue
			}
			if st.Mode&unix.S_IFMT == unix.S_IFREG && !secret(st.Mode) && st.Size <= maxRooted {
				all = append(all, copied{Path: name, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: st.Size, MTime: st.Mtim.Nano(), times: [2]unix.Timespec{st.Mtim, st.Mtim}})
			}
		}
	}
	slices.SortFunc(all, func(a, b copied) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// copyInto makes the file in a mask that is being made. If the server's root owns the mask's
// folders, it also owns the file. Else the file's owner is the same as on the host.
func (h *Hider) copyInto(dir string, c copied) (err error) {
	to := filepath.Join(dir, c.Path)
	if c.Target != "" {
		return os.Symlink(c.Target, to)
	}
	from, err := os.Open(h.Files.path(c.Path))
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(from, c.Size+1))
	if err == nil && n != c.Size {
		err = &fs.PathError{Op: "copy", Path: "/" + c.Path, Err: errors.New("it changes")}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !h.Own {
		if err := unix.Lchown(to, int(c.UID), int(c.GID)); err != nil {
			return &fs.PathError{Op: "chown", Path: to, Err: err}
		}
	}
	// The mode is set after the content and the owner: a change of either clears the setuid
	// bit.
	return errors.Join(unix.Chmod(to, c.Mode&0o7777), unix.UtimesNanoAt(unix.AT_FDCWD, to, c.times[:], unix.AT_SYMLINK_NOFOLLOW))
}

// Prune removes the masks that are not this one, and what is left of masks and listings that were
// being made. Nobody may have any of them mounted, or make one meanwhile. Fittings may be made.
func (h *Hider) Prune(keep Mask) error {
	entries, err := os.ReadDir(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		made := strings.HasPrefix(e.Name(), "mask-") || strings.HasPrefix(e.Name(), "new-") || strings.HasPrefix(e.Name(), "."+listingFile+"-")
		dir := filepath.Join(h.Dir, e.Name())
		if !made || dir == keep.Dir {
			continue
		}
		if strings.HasPrefix(e.Name(), "mask-") { // half of one would be taken for it, and hide half
			gone := filepath.Join(h.Dir, "new-"+e.Name())
			if e := errors.Join(os.RemoveAll(gone), os.Rename(dir, gone)); e != nil {
				err = errors.Join(err, e)
				continue
			}
			dir = gone
		}
		remove := os.RemoveAll
		if h.remove != nil {
			remove = h.remove
		}
		err = errors.Join(err, remove(dir))
	}
	return err
}
