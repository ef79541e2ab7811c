package children

import "syscall"

// killWithParent has the kernel kill the program when the thread that started it ends.
func killWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
