//go:build !linux

package children

import "syscall"

// killWithParent does nothing: only Linux can.
func killWithParent(*syscall.SysProcAttr) {}
