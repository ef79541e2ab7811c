package main

import (
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Linux gives the attributes whose names begin with security. or system. to everybody
// who can reach a file (xattr_permission in fs/xattr.c). gVisor asks for the right to
// read the file. ls -l looks for security.selinux, and then prints an error for each
// file that its user can't read. So if gVisor refuses such an attribute, it is read with
// root's rights. The path is still walked with the program's own rights.

// readAttributes installs this for the sandboxes of this process.
func readAttributes() {
	around[unix.SYS_GETXATTR] = func(own kernel.SyscallFn) kernel.SyscallFn { return getxattr(own, 0) }
	around[unix.SYS_LGETXATTR] = func(own kernel.SyscallFn) kernel.SyscallFn { return getxattr(own, linux.AT_SYMLINK_NOFOLLOW) }
	around[unix.SYS_FGETXATTR] = fgetxattr
}

func getxattr(own kernel.SyscallFn, flags int32) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := own(t, number, args)
		if !linuxerr.Equals(linuxerr.EACCES, err) {
			return n, control, err
		}
		file, missing := fileAt(t, linux.AT_FDCWD, args[0].Pointer(), flags)
		if missing != nil {
			return 0, nil, err
		}
		defer file.DecRef(t)
		n, err = openAttribute(t, file, args, err)
		return n, nil, err
	}
}

func fgetxattr(own kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := own(t, number, args)
		if !linuxerr.Equals(linuxerr.EACCES, err) {
			return n, control, err
		}
		file := t.GetFile(args[0].Int())
		if file == nil {
			return 0, nil, err
		}
		defer file.DecRef(t)
		n, err = openAttribute(t, file.VirtualDentry(), args, err)
		return n, nil, err
	}
}

// openAttribute is what getxattr(2) with these arguments gives for a file. For an
// attribute that not everybody may read, that is the refusal.
func openAttribute(t *kernel.Task, file vfs.VirtualDentry, args arch.SyscallArguments, refusal error) (uintptr, error) {
	name, err := t.CopyInString(args[1].Pointer(), linux.XATTR_NAME_MAX+1)
	if err != nil || !strings.HasPrefix(name, linux.XATTR_SECURITY_PREFIX) && !strings.HasPrefix(name, linux.XATTR_SYSTEM_PREFIX) {
		return 0, refusal
	}
	size := min(args[3].SizeT(), linux.XATTR_SIZE_MAX)
	root := auth.NewRootCredentials(t.Kernel().RootUserNamespace())
	value, err := t.Kernel().VFS().GetXattrAt(t, root, &vfs.PathOperation{Root: file, Start: file}, &vfs.GetXattrOptions{Name: name, Size: uint64(size)})
	if err != nil {
		return 0, err
	}
	return copyAttribute(t, args[2].Pointer(), size, value)
}

// copyAttribute writes a value to a program's buffer. A size of 0 asks how long it is.
func copyAttribute(t *kernel.Task, to hostarch.Addr, size uint, value string) (uintptr, error) {
	switch {
	case size == 0:
		return uintptr(len(value)), nil
	case len(value) > int(size) && size >= linux.XATTR_SIZE_MAX:
		return 0, linuxerr.E2BIG
	case len(value) > int(size):
		return 0, linuxerr.ERANGE
	}
	n, err := t.CopyOutBytes(to, []byte(value))
	return uintptr(n), err
}
