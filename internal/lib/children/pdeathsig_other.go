//go:build !linux

package children

import "syscall"

// killWithParent does nothing: only Linux can.
func killWithParent(*syscall.SysProcAttr) {}

// inNamespace reports whether the program gets namespaces of its own: only Linux has them.
func inNamespace(*syscall.SysProcAttr) bool { return false }
