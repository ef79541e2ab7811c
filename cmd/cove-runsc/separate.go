package main

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// A sprite's disk is an overlay of the host's. If a program writes one of several names of a
// file (hard links) in a lower layer, the overlay makes that name a separate file. gVisor
// still takes both names for one file: it may read and write one name by the other's
// descriptor. So before a call makes the overlay do that, gVisor itself makes the name a
// separate file, by a copy. A change by a descriptor that was opened for reading (fchmod,
// fsetxattr) is not seen here.

// upperSince is the time, in nanoseconds, from which on changes are in the topmost layer. A
// file that has not changed since is in a lower one. unknown: the first call tells it.
var upperSince atomic.Int64

const unknown = math.MinInt64

// attributeChanges are more calls that change the file of a path.
var attributeChanges = map[uintptr]func(arch.SyscallArguments) (changed, bool){
	unix.SYS_SETXATTR:    changedPath,
	unix.SYS_REMOVEXATTR: changedPath,
	unix.SYS_LSETXATTR: func(args arch.SyscallArguments) (changed, bool) {
		return changed{linux.AT_FDCWD, args[0].Pointer(), false}, true
	},
	unix.SYS_LREMOVEXATTR: func(args arch.SyscallArguments) (changed, bool) {
		return changed{linux.AT_FDCWD, args[0].Pointer(), false}, true
	},
}

// separateLinks installs this for the sandboxes of this process. It must be called after all
// functions that change other calls: these take the calls that it changes for gVisor's own.
func separateLinks() {
	since, err := sinceOf(os.Args)
	if err != nil {
		return // a sandbox that cove has not described has no layers of cove's
	}
	upperSince.Store(since)
	for _, calls := range []map[uintptr]func(arch.SyscallArguments) (changed, bool){changes, attributeChanges} {
		for number, read := range calls {
			beneath(number, func(t *kernel.Task, args arch.SyscallArguments) error {
				if c, writes := read(args); writes {
					return c.separate(t)
				}
				return nil
			})
		}
	}
	for number, read := range renames {
		beneath(number, func(t *kernel.Task, args arch.SyscallArguments) error {
			r := read(args)
			err := changed{r.oldDir, r.oldPath, false}.separate(t)
			if err == nil && r.flags&linux.RENAME_EXCHANGE != 0 {
				err = changed{r.newDir, r.newPath, false}.separate(t)
			}
			return err
		})
	}
}

// beneath adds a function that is called before gVisor's own call. If the function fails, the
// call is not made.
func beneath(number uintptr, do func(*kernel.Task, arch.SyscallArguments) error) {
	above := around[number]
	around[number] = func(own kernel.SyscallFn) kernel.SyscallFn {
		call := func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if err := do(t, args); err != nil {
				return 0, nil, err
			}
			return own(t, number, args)
		}
		if above == nil {
			return call
		}
		return above(call)
	}
}

// sinceOf reads the time from which on the sandbox's changes are in the topmost layer. It is
// in the description that the sandbox's process is given.
func sinceOf(args []string) (int64, error) {
	for _, arg := range args {
		text, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), "spec-fd=")
		if !ok {
			continue
		}
		fd, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, err
		}
		data := make([]byte, st.Size)
		if _, err := unix.Pread(fd, data, 0); err != nil { // the next reader begins at the same offset
			return 0, err
		}
		var spec struct {
			Annotations map[string]string `json:"annotations"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			return 0, err
		}
		switch since := spec.Annotations[boot.UpperSince]; since {
		case "":
			return 0, os.ErrNotExist
		case boot.SinceRestore:
			return unknown, nil
		default:
			return strconv.ParseInt(since, 10, 64)
		}
	}
	return 0, io.EOF
}

// sealedBefore says whether a file that has changed then is in a lower layer. If the sandbox
// goes on from memory in a new layer, nothing has changed by a path before the first call.
func sealedBefore(t *kernel.Task, ctime int64) bool {
	if upperSince.Load() == unknown {
		upperSince.CompareAndSwap(unknown, t.Kernel().RealtimeClock().Now().Nanoseconds())
	}
	return ctime < upperSince.Load()
}

// separate makes a name that a call is about to change a file of its own, if the overlay would.
func (c changed) separate(t *kernel.Task) error {
	var flags int32 = linux.AT_SYMLINK_NOFOLLOW
	if c.follow {
		flags = 0
	}
	file, err := fileAt(t, c.dir, c.path, flags)
	if err != nil {
		return nil // the call itself will say so
	}
	defer file.DecRef(t)
	layout, dentry := goferFile(file)
	if layout == nil || file.Dentry().IsDead() {
		return nil
	}
	inode := *at[unsafe.Pointer](dentry, layout.inode)
	if at[atomicbitops.Uint32](inode, layout.nlink).Load() < 2 || at[atomicbitops.Int32](inode, layout.writeFD).Load() >= 0 {
		return nil // one name; or it is written by a descriptor, which is of one file of the host's
	}
	st, err := t.Kernel().VFS().StatAt(t, t.Credentials(), &vfs.PathOperation{Root: file, Start: file}, &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS, Sync: linux.AT_STATX_DONT_SYNC})
	if err != nil || st.Mode&linux.S_IFMT != linux.S_IFREG || st.UID == uint32(auth.OverflowUID) || !sealedBefore(t, st.Ctime.ToNsec()) {
		return nil
	}
	if !mayChange(t, file, st.UID) || mayWrite(file.Mount()) != nil {
		return nil
	}
	return ownFile(t, file, &st)
}

// mayChange says whether a program may write to a file, or is its owner, or root.
func mayChange(t *kernel.Task, file vfs.VirtualDentry, owner uint32) bool {
	creds := t.Credentials()
	if isRoot(t) || creds.EffectiveKUID == auth.KUID(owner) {
		return true
	}
	return t.Kernel().VFS().AccessAt(t, creds, vfs.MayWrite, &vfs.PathOperation{Root: file, Start: file}) == nil
}

// separated is the name that a copy has in its folder until the copy is whole. If a sandbox is
// killed before that, the file stays until another one in the folder is separated.
const separated = ".cove-separated"

// ownFile puts a copy of a file in the place of one of its names.
func ownFile(t *kernel.Task, file vfs.VirtualDentry, st *linux.Statx) error {
	adopting.Lock()
	defer adopting.Unlock()
	fs, creds := t.Kernel().VFS(), auth.NewRootCredentials(t.Kernel().RootUserNamespace())
	root := t.MountNamespace().Root(t)
	defer root.DecRef(t)
	name, err := fs.PathnameReachable(t, root, file)
	if err != nil || name == "" {
		return nil // it has no name any more
	}
	dir, err := fs.GetDentryAt(t, creds, &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(path.Dir(name))}, &vfs.GetDentryOptions{})
	if err != nil {
		return nil // and neither has its folder
	}
	defer dir.DecRef(t)
	if dir.Mount() != file.Mount() {
		return nil // it is a mount by itself
	}
	in := func(name string) *vfs.PathOperation {
		return &vfs.PathOperation{Root: dir, Start: dir, Path: fspath.Parse(name)}
	}
	if err := fs.UnlinkAt(t, creds, in(separated)); err != nil && !linuxerr.Equals(linuxerr.ENOENT, err) {
		return err
	}
	err = copyTo(t, creds, &vfs.PathOperation{Root: file, Start: file}, st, in(separated), st.UID, st.GID)
	if err == nil {
		err = replace(t, creds, file, in(separated), in(path.Base(name)))
	}
	if err != nil {
		_ = fs.UnlinkAt(t, creds, in(separated)) // there is none if it could not be made
	}
	return err
}

// replace renames a copy over the name of a file, unless the name is another's by now.
func replace(t *kernel.Task, creds *auth.Credentials, file vfs.VirtualDentry, from, to *vfs.PathOperation) error {
	fs := t.Kernel().VFS()
	again, err := fs.GetDentryAt(t, creds, to, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	again.DecRef(t)
	if again != file {
		return linuxerr.ESTALE
	}
	return fs.RenameAt(t, creds, from, to, &vfs.RenameOptions{})
}
