package main

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const sysFstatat = unix.SYS_NEWFSTATAT

// Calls that only older architectures have.
func init() {
	observers[unix.SYS_STAT] = func(t *kernel.Task, args arch.SyscallArguments) {
		settleAt(t, linux.AT_FDCWD, args[0].Pointer(), 0)
	}
	observers[unix.SYS_LSTAT] = func(t *kernel.Task, args arch.SyscallArguments) {
		settleAt(t, linux.AT_FDCWD, args[0].Pointer(), linux.AT_SYMLINK_NOFOLLOW)
	}
	renames[unix.SYS_RENAME] = func(args arch.SyscallArguments) renaming {
		return renaming{linux.AT_FDCWD, args[0].Pointer(), linux.AT_FDCWD, args[1].Pointer(), 0}
	}
	for _, number := range []uintptr{unix.SYS_CREAT, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_UTIME, unix.SYS_UTIMES} {
		changes[number] = changedPath
	}
	changes[unix.SYS_OPEN] = func(args arch.SyscallArguments) (changed, bool) {
		return opened(linux.AT_FDCWD, args[0].Pointer(), args[1].Uint())
	}
	clones = append(clones, unix.SYS_FORK, unix.SYS_VFORK)
	for _, number := range []uintptr{unix.SYS_LINK, unix.SYS_LCHOWN} {
		changes[number] = func(args arch.SyscallArguments) (changed, bool) {
			return changed{linux.AT_FDCWD, args[0].Pointer(), false}, true
		}
	}
	changes[unix.SYS_FUTIMESAT] = func(args arch.SyscallArguments) (changed, bool) {
		return changed{args[0].Int(), args[1].Pointer(), true}, true
	}
}
