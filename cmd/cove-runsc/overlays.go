package main

import (
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// A sprite's disk is an overlay of the host's. The host makes no whiteouts in an
// overlay (ovl_mknod in Linux's fs/overlayfs/dir.c). A program in the sandbox could
// mount an overlay with its upper folder on that disk. That overlay could not note
// that a file is gone. gVisor's kernel crashes if it can't note that after a rename.
// So such a mount is refused, as if the file system could not be an upper one.

// refuseOverlays makes mount(2) refuse it.
func refuseOverlays() {
	around[unix.SYS_MOUNT] = func(own kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if upper := upperOf(t, args[2].Pointer(), args[4].Pointer()); upper != "" && !takesWhiteouts(t, upper) {
				return 0, nil, linuxerr.EINVAL
			}
			return own(t, number, args)
		}
	}
}

// upperOf is the upper folder of the overlay that a call would mount, or empty.
func upperOf(t *kernel.Task, kind, data hostarch.Addr) string {
	if kind == 0 || data == 0 {
		return ""
	}
	if name, err := t.CopyInString(kind, hostarch.PageSize); err != nil || name != overlay.Name {
		return ""
	}
	options, err := t.CopyInString(data, hostarch.PageSize)
	if err != nil {
		return ""
	}
	return vfs.GenericParseMountOptions(options)["upperdir"]
}

// takesWhiteouts reports whether a whiteout can be made in a folder. If the
// folder can't be reached, the call itself reports the error.
func takesWhiteouts(t *kernel.Task, folder string) bool {
	root, wd := t.FSContext().RootDirectory(), t.FSContext().WorkingDirectory()
	defer root.DecRef(t)
	defer wd.DecRef(t)
	at := func(path string) *vfs.PathOperation {
		op := &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(path)}
		if !op.Path.Absolute {
			op.Start = wd
		}
		return op
	}
	v := t.Kernel().VFS()
	name := strings.TrimRight(folder, "/") + "/.cove-whiteout"
	err := overlay.CreateWhiteout(t, v, t.Credentials(), at(name))
	if err == nil {
		_ = v.UnlinkAt(t, t.Credentials(), at(name))
	}
	return !linuxerr.Equals(linuxerr.EPERM, err)
}
