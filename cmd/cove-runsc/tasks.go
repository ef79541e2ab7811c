package main

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// Root in the sandbox can leave the control group whose pids.max bounds processes, or change
// the bound. The host's own bound does not help: the sandbox's kernel crashes if it can't
// make a thread. So the kernel itself refuses processes and threads beyond another bound,
// which no program can change. It does not refuse the guest's, so that the guest can end the
// others.

// mostTasks has room beyond boot.PidsMax for the guest's own threads, and for programs of cove's
// that run outside of the group.
const mostTasks = boot.PidsMax + 256

// clones are the calls that make a process or a thread.
var clones = []uintptr{unix.SYS_CLONE, unix.SYS_CLONE3}

// boundTasks has the sandboxes of this process have no more than mostTasks.
func boundTasks() {
	for _, number := range clones {
		around[number] = func(own kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				all := t.Kernel().TaskSet().Root
				if all.NumTasks() >= mostTasks && all.IDOfThreadGroup(t.ThreadGroup()) != 1 {
					return 0, nil, linuxerr.EAGAIN
				}
				return own(t, number, args)
			}
		}
	}
}
