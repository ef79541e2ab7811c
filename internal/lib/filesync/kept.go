package filesync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A backup shares no file with a tree. A program that writes a file of the tree in place
// would change the backup too.

// keepCopy copies a file or a link, with its mode, times and attributes. The copy shares no
// writable data with the original. If durable is set, the file's content is on the disk when
// keepCopy returns.
func keepCopy(fromDir int, from string, toDir int, to string, durable bool) error {
	st, err := statAt(fromDir, from)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readLink(fromDir, from)
		if err == nil {
			err = unix.Symlinkat(target, toDir, to)
		}
		if err != nil {
			return err
		}
		_ = unix.Fchownat(toDir, to, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW) // an ordinary user has only links of its own
		return setTime(toDir, to, unix.TimespecToNsec(st.Mtim))
	}
	src, _, err := openAt(fromDir, from, from)
	if errors.Is(err, fs.ErrPermission) && unix.Fchmodat(fromDir, from, st.Mode&0o7777|0o400, 0) == nil {
		src, _, err = openAt(fromDir, from, from)
		err = errors.Join(err, unix.Fchmodat(fromDir, from, st.Mode&0o7777, 0))
	}
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := createStaged(toDir, to, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) != nil { // a file system that shares no blocks
		if _, err := copyBuffered(dst, src); err != nil {
			return err
		}
	}
	copyAttributes(dst, src)
	_ = dst.Chown(int(st.Uid), int(st.Gid)) // likewise
	if err := unix.Fchmod(int(dst.Fd()), st.Mode&0o7777); err != nil {
		return err
	}
	err = setTime(toDir, to, unix.TimespecToNsec(st.Mtim))
	if durable {
		err = errors.Join(err, dst.Sync())
	}
	return errors.Join(err, dst.Close())
}

// copyAttributes copies the extended attributes that this process may read and set. A sync
// carries no attributes, so a missing one is not an error.
func copyAttributes(dst, src *os.File) {
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(int(src.Fd()), names)
	if err != nil {
		return
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, 64<<10)
		if n, err := unix.Fgetxattr(int(src.Fd()), name, value); err == nil {
			_ = unix.Fsetxattr(int(dst.Fd()), name, value[:n], 0)
		}
	}
}

// unshare gives the backup a file of its own, if the file that operation n kept has further
// names. A program may write to it by these.
func (a *applier) unshare(n int64, o *op) error {
	if o.inside() || o.kind != opRemove && o.kind != opPut || o.prior.Type != File {
		return nil
	}
	name := original(n)
	st, err := statAt(a.files, name)
	if err != nil || st.Nlink < 2 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // nothing was kept, or nobody else has it
	}
	if err := a.w.step("unshare"); err != nil {
		return err
	}
	part := name + ".new"
	if err := keepCopy(a.files, name, a.files, part, true); err != nil {
		return fmt.Errorf("keep a copy of %q: %w", o.entry.Path, err)
	}
	return unix.Renameat(a.files, part, a.files, name)
}
