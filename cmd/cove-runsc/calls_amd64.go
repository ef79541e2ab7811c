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
}
