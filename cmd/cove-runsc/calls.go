package main

import (
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// before has what is to be done before a system call of a program in the sandbox, by its
// number. It is not written to once the sandbox runs.
var before = map[uintptr]func(*kernel.Task, arch.SyscallArguments){}

// seeCalls has gVisor do that. It is called once, before there is a sandbox.
func seeCalls() {
	numbers := map[uintptr]bool{}
	for number := range before {
		numbers[number] = true
	}
	for _, table := range kernel.SyscallTables() {
		if table.Arch != arch.Host {
			continue
		}
		table.ExternalFilterBefore = func(t *kernel.Task, number uintptr, args arch.SyscallArguments) bool {
			if do := before[number]; do != nil {
				do(t, args)
			}
			return false // the call goes on as it is
		}
		table.FeatureEnable.Enable(kernel.ExternalBeforeEnable, numbers, false)
	}
}
