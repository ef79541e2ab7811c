package children

import "syscall"

// killWithParent makes the kernel kill the program when the thread that started it ends.
func killWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// inNamespace reports whether the program gets namespaces of its own.
func inNamespace(attr *syscall.SysProcAttr) bool { return attr.Cloneflags != 0 }
