package main

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// before has, by the number of a system call, the function to call before a program in
// the sandbox makes that call. It is not written to once the sandbox runs.
var before = map[uintptr]func(*kernel.Task, arch.SyscallArguments){}

// around has, by the number of a system call, a function that makes another call of
// gVisor's own. It is not written to once the sandbox runs.
var around = map[uintptr]func(own kernel.SyscallFn) kernel.SyscallFn{}

// seeCalls makes gVisor call both. It is called once, before there is a sandbox.
func seeCalls() {
	numbers := map[uintptr]bool{}
	for number := range before {
		numbers[number] = true
	}
	for _, table := range kernel.SyscallTables() {
		if table.Arch != arch.Host {
			continue
		}
		for number, wrap := range around {
			call := table.Table[number]
			call.Fn = wrap(call.Fn)
			table.Table[number] = call
		}
		table.Init() // copies the functions to where gVisor looks them up
		table.ExternalFilterBefore = func(t *kernel.Task, number uintptr, args arch.SyscallArguments) bool {
			if do := before[number]; do != nil {
				do(t, args)
			}
			return false // the call goes on as it is
		}
		table.FeatureEnable.Enable(kernel.ExternalBeforeEnable, numbers, false)
	}
}

// fileAt is the file that a program's call names, as fstatat(2) takes its arguments: of
// the flags, it knows AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH. The caller drops the
// reference.
func fileAt(t *kernel.Task, dir int32, addr hostarch.Addr, flags int32) (vfs.VirtualDentry, error) {
	none := vfs.VirtualDentry{}
	name, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return none, err
	}
	if name == "" && flags&linux.AT_EMPTY_PATH == 0 {
		return none, linuxerr.ENOENT
	}
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	op := vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(name), FollowFinalSymlink: flags&linux.AT_SYMLINK_NOFOLLOW == 0}
	switch {
	case op.Path.Absolute:
	case dir == linux.AT_FDCWD:
		op.Start = t.FSContext().WorkingDirectory()
		defer op.Start.DecRef(t)
	default:
		file := t.GetFile(dir)
		if file == nil {
			return none, linuxerr.EBADF
		}
		defer file.DecRef(t)
		op.Start = file.VirtualDentry()
		if name == "" {
			op.Start.IncRef()
			return op.Start, nil
		}
	}
	return t.Kernel().VFS().GetDentryAt(t, t.Credentials(), &op, &vfs.GetDentryOptions{})
}
