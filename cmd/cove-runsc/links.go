package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// In Linux, a rename between two names of one file (hard links) does nothing: both stay
// (rename(2)). gVisor takes the old name away. But gVisor asks the host to rename, and the
// host is Linux: both names stay on the disk. The old name is back once gVisor forgets the
// folder, as it does for a checkpoint.
//
// A rename over a name takes one link from the file that had it. gVisor does not count
// that (st_nlink) until it forgets the file.

// renames are the calls that rename, and how each has its arguments.
var renames = map[uintptr]func(arch.SyscallArguments) renaming{
	unix.SYS_RENAMEAT: func(args arch.SyscallArguments) renaming {
		return renaming{args[0].Int(), args[1].Pointer(), args[2].Int(), args[3].Pointer(), 0}
	},
	unix.SYS_RENAMEAT2: func(args arch.SyscallArguments) renaming {
		return renaming{args[0].Int(), args[1].Pointer(), args[2].Int(), args[3].Pointer(), args[4].Uint()}
	},
}

// renaming has the arguments of renameat2(2).
type renaming struct {
	oldDir  int32
	oldPath hostarch.Addr
	newDir  int32
	newPath hostarch.Addr
	flags   uint32
}

// renameLinks has the sandboxes of this process do as Linux does.
func renameLinks() {
	for number, read := range renames {
		around[number] = func(own kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				r := read(args)
				if r.flags != 0 {
					return own(t, number, args) // replaces nothing: the names are exchanged, or the new one must not exist
				}
				replaced, err := fileAt(t, r.newDir, r.newPath, linux.AT_SYMLINK_NOFOLLOW)
				if err != nil {
					return own(t, number, args)
				}
				defer replaced.DecRef(t)
				if r.isOf(t, replaced) {
					return 0, nil, mayWrite(replaced.Mount())
				}
				count := countOf(replaced)
				n, control, err := own(t, number, args)
				if err == nil {
					count.less(replaced)
				}
				return n, control, err
			}
		}
	}
}

// isOf says whether the old name is another name of the file that has the new one. It is
// false if the old name can't be reached: the call then fails.
func (r renaming) isOf(t *kernel.Task, replaced vfs.VirtualDentry) bool {
	renamed, err := fileAt(t, r.oldDir, r.oldPath, linux.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return false
	}
	defer renamed.DecRef(t)
	if renamed.Mount() != replaced.Mount() || renamed.Dentry() == replaced.Dentry() {
		return false // gVisor does as Linux does
	}
	a, errA := inodeOf(t, renamed)
	b, errB := inodeOf(t, replaced)
	return errA == nil && errB == nil && a.Mode&linux.S_IFMT != linux.S_IFDIR &&
		a.Ino == b.Ino && a.DevMajor == b.DevMajor && a.DevMinor == b.DevMinor
}

// inodeOf is the result of stat(2) for a file. gVisor's own caches suffice: gVisor knows
// the links.
func inodeOf(t *kernel.Task, file vfs.VirtualDentry) (linux.Statx, error) {
	return t.Kernel().VFS().StatAt(t, t.Credentials(), &vfs.PathOperation{Root: file, Start: file},
		&vfs.StatOptions{Mask: linux.STATX_INO | linux.STATX_TYPE, Sync: linux.AT_STATX_DONT_SYNC})
}

// mayWrite is the error of a write to a mount, if it is read-only.
func mayWrite(mount *vfs.Mount) error {
	if err := mount.CheckBeginWrite(); err != nil {
		return err
	}
	mount.EndWrite()
	return nil
}

// linkCount is how many links a file of the gofer file system had.
type linkCount struct {
	of  *atomicbitops.Uint32 // nil: the file is of another file system, which counts links itself
	had uint32
}

func countOf(file vfs.VirtualDentry) linkCount {
	layout, dentry := goferFile(file)
	if layout == nil || file.Dentry().IsDead() {
		return linkCount{}
	}
	of := at[atomicbitops.Uint32](*at[unsafe.Pointer](dentry, layout.inode), layout.nlink)
	return linkCount{of, of.Load()}
}

// less takes one link from it, if this name is gone. If the count has changed meanwhile,
// an unlink came before the rename, and has counted that link.
func (c linkCount) less(name vfs.VirtualDentry) {
	if c.of != nil && c.had > 0 && name.Dentry().IsDead() {
		c.of.CompareAndSwap(c.had, c.had-1)
	}
}
