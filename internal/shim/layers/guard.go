package layers

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An overlay opens the files of its layers with the rights of the thread that mounted it. A
// disk must be writable, so a thread with all rights must mount it. If a file of the host
// becomes secret after that (chmod 600), each sandbox that runs could still open it. Therefore
// the lowest layer of a guarded overlay is an overlay of its own, of the host's folder alone.
// A thread with the rights of a user who owns nothing (a stranger) mounts it. When a file is
// opened, or copied to a layer above, the kernel then checks the mode that the file has at
// that moment.

// mountGuarded mounts the lowest layer at target, as a stranger sees it.
func (o Overlay) mountGuarded(target string) error {
	if len(o.Lowers) == 0 {
		return errors.New("there is no lower layer")
	}
	var at [2]string // a stranger can't walk to the folders
	for i, dir := range []string{o.Guard, o.Lowers[len(o.Lowers)-1]} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		at[i] = FDPath(fd)
	}
	fd, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: target, Err: err}
	}
	defer unix.Close(fd)
	options := "lowerdir=" + strings.Join(at[:], ":") + ",metacopy=off"
	if o.UserXattr {
		options += ",userxattr"
	}
	return asStranger(func() error {
		return unix.Mount("overlay", FDPath(fd), "overlay", unix.MS_RDONLY, options)
	})
}

// asStranger runs a function in the calling thread. Meanwhile the thread has the rights to
// mount. Its rights to files are those of a user who owns nothing and is in no group.
func asStranger(do func() error) (err error) {
	uid, err := lastID("/proc/self/uid_map")
	if err != nil {
		return err
	}
	gid, err := lastID("/proc/self/gid_map")
	if err != nil {
		return err
	}
	// If a thread changes its rights, other processes can't look at its process any more.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	groups, err := unix.Getgroups()
	if err != nil {
		return err
	}
	own := make([]uint32, len(groups), len(groups)+1) // never without an array
	for i, g := range groups {
		own[i] = uint32(g)
	}
	defer func() {
		back := errors.Join(setGroups(own), setFiles(unix.SYS_SETFSUID, uintptr(os.Geteuid())), setFiles(unix.SYS_SETFSGID, uintptr(os.Getegid())))
		if dumpable == 1 {
			back = errors.Join(back, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
		}
		if back == nil {
			runtime.UnlockOSThread() // else nobody else gets this thread
		}
		err = errors.Join(err, back)
	}()
	if err := errors.Join(setGroups(own[:0]), setFiles(unix.SYS_SETFSGID, gid), setFiles(unix.SYS_SETFSUID, uid)); err != nil {
		return err
	}
	// With that the kernel takes CAP_DAC_OVERRIDE and its like from the thread, unless its flags
	// (securebits) say otherwise.
	caps, header := [2]unix.CapUserData{}, unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	if caps[0].Effective&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) != 0 {
		return errors.New("the kernel does not take the rights to all files from a stranger")
	}
	return do()
}

// setGroups sets the groups of the calling thread alone. The list has room for one at least.
func setGroups(list []uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(&list[:1][0])), 0); errno != 0 {
		return fmt.Errorf("set the groups of a thread: %w", errno)
	}
	return nil
}

// setFiles makes a call that sets an id of the calling thread, for files alone: setfsuid(2)
// or setfsgid(2). They report no error.
func setFiles(call, id uintptr) error {
	_, _, _ = unix.RawSyscall(call, id, 0, 0)
	if now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0); now != id {
		return fmt.Errorf("use files as user or group %d: the kernel refuses it", id)
	}
	return nil
}

// lastID is the highest id that a map of a user namespace has: of all ids the least likely to
// own a file. It is no user's by any convention.
func lastID(file string) (uintptr, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var last []uintptr
	for line := range strings.Lines(string(text)) {
		var inside, outside, count uintptr
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil || count == 0 {
			return 0, fmt.Errorf("%s: unknown line %q", file, line)
		}
		last = append(last, inside+count-1)
	}
	if len(last) == 0 || slices.Max(last) == 0 {
		return 0, fmt.Errorf("%s has no id besides root's", file)
	}
	return slices.Max(last), nil
}
