package supervise

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoPid is the process that a siginfo of a child is about. It comes after three ints,
// padded to the alignment of a pointer.
func siginfoPid(info *unix.Siginfo) int {
	const offset = (12 + unsafe.Sizeof(uintptr(0)) - 1) / unsafe.Sizeof(uintptr(0)) * unsafe.Sizeof(uintptr(0))
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
