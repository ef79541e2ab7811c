package users

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Do runs fn with the rights of the user, on this thread alone. So the kernel decides what the
// user may do to files, and new files are the user's. The guest is root, and could check
// rights itself, but never as exactly. gVisor does not have setfsuid, which is made for this.
// So Do sets the effective ids, with system calls that, unlike Go's own functions, don't
// change the other threads.
//
// fn must not start goroutines that touch files. An open file goes on working
// afterwards.
func (u User) Do(fn func() error) error {
	if int(u.UID) == os.Geteuid() {
		return fn()
	}
	runtime.LockOSThread()
	before, err := syscall.Getgroups()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	groups := make([]uint32, len(before))
	for i, g := range before {
		groups[i] = uint32(g)
	}
	err = errors.Join(setGroups(u.Groups), setEffective(syscall.SYS_SETRESGID, u.GID), setEffective(syscall.SYS_SETRESUID, u.UID))
	if err == nil {
		err = fn()
	}
	back := errors.Join(
		setEffective(syscall.SYS_SETRESUID, uint32(os.Getuid())),
		setEffective(syscall.SYS_SETRESGID, uint32(os.Getgid())),
		setGroups(groups))
	if back != nil {
		// The thread stays locked, and ends with its goroutine.
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

func setEffective(call uintptr, id uint32) error {
	const keep = ^uintptr(0)
	if _, _, errno := syscall.RawSyscall(call, keep, uintptr(id), keep); errno != 0 {
		return errno
	}
	return nil
}

func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}
