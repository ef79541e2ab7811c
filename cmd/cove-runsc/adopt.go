package main

import (
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// The user namespace of an ordinary user's server does not have the host's root. In it, nobody
// owns the host's files below /usr. The host refuses to link, rename or write them, and to
// change their mode, owner or times. dpkg links each file that it replaces, so dpkg could not
// upgrade a package of the host's. If the host refuses such a call to a sandbox's root, gVisor
// replaces the file by a copy that root owns. Then gVisor makes the call again. The copy lies
// in the sprite's own layer.

// changes are the calls that the host may refuse for such a file. Each function says which
// file its call changes, or false if the call changes none.
var changes = map[uintptr]func(arch.SyscallArguments) (changed, bool){
	unix.SYS_LINKAT: func(args arch.SyscallArguments) (changed, bool) {
		return changed{args[0].Int(), args[1].Pointer(), args[4].Int()&linux.AT_SYMLINK_FOLLOW != 0}, true
	},
	unix.SYS_OPENAT: func(args arch.SyscallArguments) (changed, bool) {
		return opened(args[0].Int(), args[1].Pointer(), args[2].Uint())
	},
	unix.SYS_FCHMODAT: func(args arch.SyscallArguments) (changed, bool) {
		return changed{args[0].Int(), args[1].Pointer(), true}, true
	},
	unix.SYS_FCHOWNAT: func(args arch.SyscallArguments) (changed, bool) {
		return changed{args[0].Int(), args[1].Pointer(), args[4].Int()&linux.AT_SYMLINK_NOFOLLOW == 0}, true
	},
	unix.SYS_UTIMENSAT: func(args arch.SyscallArguments) (changed, bool) {
		return changed{args[0].Int(), args[1].Pointer(), args[3].Int()&linux.AT_SYMLINK_NOFOLLOW == 0}, true
	},
	unix.SYS_TRUNCATE: changedPath,
}

// changed is the file that a call names.
type changed struct {
	dir    int32
	path   hostarch.Addr
	follow bool // a symbolic link is followed
}

// changedPath reads the arguments of a call whose first one is a path.
func changedPath(args arch.SyscallArguments) (changed, bool) {
	return changed{linux.AT_FDCWD, args[0].Pointer(), true}, true
}

// opened is the file that an open for writing names.
func opened(dir int32, path hostarch.Addr, flags uint32) (changed, bool) {
	writes := flags&linux.O_ACCMODE != linux.O_RDONLY || flags&linux.O_TRUNC != 0
	if flags&linux.O_PATH != 0 || flags&(linux.O_CREAT|linux.O_EXCL) == linux.O_CREAT|linux.O_EXCL {
		writes = false // a file that exists is not opened
	}
	return changed{dir, path, flags&linux.O_NOFOLLOW == 0}, writes
}

// adoptFiles installs this for the sandboxes of this process, unless they have the host's
// root.
func adoptFiles() {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err == nil && slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"}) {
		return
	}
	for number, read := range changes {
		adoptFor(number, read)
	}
	for number, read := range renames {
		adoptFor(number, func(args arch.SyscallArguments) (changed, bool) {
			r := read(args)
			return changed{r.oldDir, r.oldPath, false}, true
		})
	}
}

// adoptFor makes a call again if the host refuses it for a file that nobody owns. Before that,
// the file is made root's.
func adoptFor(number uintptr, read func(arch.SyscallArguments) (changed, bool)) {
	above := around[number]
	around[number] = func(own kernel.SyscallFn) kernel.SyscallFn {
		call := func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			n, control, err := own(t, number, args)
			// EOVERFLOW is of an owner that the overlay can't give a copy.
			if !linuxerr.Equals(linuxerr.EPERM, err) && !linuxerr.Equals(linuxerr.EACCES, err) && !linuxerr.Equals(linuxerr.EOVERFLOW, err) {
				return n, control, err
			}
			if c, writes := read(args); !writes || !c.adopt(t) {
				return n, control, err
			}
			return own(t, number, args)
		}
		if above == nil {
			return call
		}
		return above(call)
	}
}

// adopt says whether it has made the file root's.
func (c changed) adopt(t *kernel.Task) bool {
	if !isRoot(t) {
		return false
	}
	var flags int32 = linux.AT_SYMLINK_NOFOLLOW
	if c.follow {
		flags = 0
	}
	file, err := fileAt(t, c.dir, c.path, flags)
	if err != nil {
		return false
	}
	defer file.DecRef(t)
	if err := adopt(t, file); err != nil {
		t.Debugf("adopt a host file: %v", err)
		return false
	}
	return true
}

// isRoot says whether a program has the rights over all files of its sandbox. Root of a user
// namespace that was made in the sandbox has not.
func isRoot(t *kernel.Task) bool {
	creds, all := t.Credentials(), t.Kernel().RootUserNamespace()
	return creds.EffectiveKUID == auth.RootKUID && creds.HasCapabilityIn(linux.CAP_FOWNER, all) &&
		creds.HasCapabilityIn(linux.CAP_CHOWN, all) && creds.HasCapabilityIn(linux.CAP_DAC_OVERRIDE, all)
}

// adopting lets only one file be adopted at a time: two would have the same temporary name.
var adopting sync.Mutex

// temporary is the name that a copy has in its folder until the copy is whole. If a sandbox is
// killed before that, the file stays until another one in the folder is adopted.
const temporary = ".cove-adopted"

// adopt replaces a file that nobody owns by a copy that root owns. The program's own rights
// must suffice to read the file, and to write to the folder.
func adopt(t *kernel.Task, file vfs.VirtualDentry) error {
	adopting.Lock()
	defer adopting.Unlock()
	fs, creds := t.Kernel().VFS(), t.Credentials()
	old := vfs.PathOperation{Root: file, Start: file}
	st, err := fs.StatAt(t, creds, &old, &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
	if err != nil {
		return err
	}
	if st.Mode&linux.S_IFMT != linux.S_IFREG || st.UID != uint32(auth.OverflowUID) {
		return linuxerr.EPERM
	}
	dir, name, err := placeOf(t, file)
	if err != nil {
		return err
	}
	defer dir.DecRef(t)
	at := func(name string) *vfs.PathOperation {
		return &vfs.PathOperation{Root: dir, Start: dir, Path: fspath.Parse(name)}
	}
	if left, err := fs.StatAt(t, creds, at(temporary), &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS}); err == nil {
		if left.Mode&linux.S_IFMT != linux.S_IFREG || left.UID != uint32(auth.RootKUID) {
			return linuxerr.EEXIST
		}
		if err := fs.UnlinkAt(t, creds, at(temporary)); err != nil {
			return err
		}
	}
	plain := st
	plain.Mode &^= linux.S_ISGID // of a group that is not known here
	err = copyTo(t, creds, &old, &plain, at(temporary), uint32(auth.RootKUID), uint32(auth.RootKGID))
	if err == nil {
		err = replace(t, creds, file, at(temporary), at(name))
	}
	if err != nil {
		_ = fs.UnlinkAt(t, creds, at(temporary)) // there is none if it could not be made
	}
	return err
}

// placeOf is the folder of a file, on the file's own mount, and the name there. The caller
// drops the reference.
func placeOf(t *kernel.Task, file vfs.VirtualDentry) (vfs.VirtualDentry, string, error) {
	fs, root := t.Kernel().VFS(), t.FSContext().RootDirectory()
	defer root.DecRef(t)
	name, err := fs.PathnameReachable(t, root, file)
	if err != nil || name == "" {
		return vfs.VirtualDentry{}, "", linuxerr.ENOENT
	}
	dir, err := fs.GetDentryAt(t, t.Credentials(), &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(path.Dir(name))}, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return vfs.VirtualDentry{}, "", err
	}
	if dir.Mount() != file.Mount() {
		dir.DecRef(t)
		return vfs.VirtualDentry{}, "", linuxerr.EXDEV
	}
	return dir, path.Base(name), nil
}

// copyTo makes a copy of a file, with the mode and times of st, and this owner. Extended
// attributes are copied as far as the host takes them.
func copyTo(t *kernel.Task, creds *auth.Credentials, old *vfs.PathOperation, st *linux.Statx, to *vfs.PathOperation, uid, gid uint32) error {
	fs := t.Kernel().VFS()
	from, err := fs.OpenAt(t, creds, old, &vfs.OpenOptions{Flags: linux.O_RDONLY})
	if err != nil {
		return err
	}
	defer from.DecRef(t)
	f, err := fs.OpenAt(t, creds, to, &vfs.OpenOptions{Flags: linux.O_WRONLY | linux.O_CREAT | linux.O_EXCL, Mode: 0o600})
	if err != nil {
		return err
	}
	defer f.DecRef(t)
	if _, err := vfs.CopyRegularFileData(t, f, from); err != nil {
		return err
	}
	names, _ := fs.ListXattrAt(t, creds, old, linux.XATTR_LIST_MAX)
	for _, name := range names {
		if strings.HasPrefix(name, linux.XATTR_SYSTEM_PREFIX) {
			continue // an ACL is of users who are unknown here
		}
		if value, err := fs.GetXattrAt(t, creds, old, &vfs.GetXattrOptions{Name: name, Size: linux.XATTR_SIZE_MAX}); err == nil {
			_ = fs.SetXattrAt(t, creds, to, &vfs.SetXattrOptions{Name: name, Value: value})
		}
	}
	// The mode is set after the owner: a change of the owner clears the setuid bit.
	owner := linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: uid, GID: gid}
	if err := fs.SetStatAt(t, creds, to, &vfs.SetStatOptions{Stat: owner}); err != nil {
		return err
	}
	rest := linux.Statx{Mask: linux.STATX_MODE | linux.STATX_ATIME | linux.STATX_MTIME, Mode: st.Mode &^ linux.S_IFMT, Atime: st.Atime, Mtime: st.Mtime}
	if err := fs.SetStatAt(t, creds, to, &vfs.SetStatOptions{Stat: rest}); err != nil {
		return err
	}
	return f.Sync(t) // the old file was on the disk, too
}
