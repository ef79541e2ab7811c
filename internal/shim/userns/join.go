package userns

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process was recorded in the data folder: its number, and when it started, in clock
// ticks since the machine's boot. Another process that has the number is not it.
type Process struct {
	PID   int
	Start uint64
}

// replaceHolder starts a holder after the last one has died. A namespace lives as long as
// a process in it, and only a process in it may take up its sandboxes.
func replaceHolder(data string, argv []string, left []Process) (pid int, err error) {
	for _, p := range left {
		ns, err := namespaceOf(p)
		if err != nil {
			continue // it has ended, or can't be entered
		}
		defer ns.Close()
		if pid, err := joinHolder(data, argv, ns); err == nil {
			return pid, nil
		}
	}
	return startHolder(data, argv)
}

// joinHolder starts a holder in a user namespace that lives.
func joinHolder(data string, argv []string, ns *os.File) (pid int, err error) {
	nsenter, err := findNsenter()
	if err != nil {
		return 0, err
	}
	want, err := ns.Stat()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(nsenter, append([]string{"--user=/proc/self/fd/3", "--preserve-credentials", "--"}, argv...)...)
	cmd.ExtraFiles = []*os.File{ns}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return runHolder(data, cmd, func() error {
		for deadline := time.Now().Add(joinLimit); ; <-time.After(time.Millisecond) {
			if _, err := processStart(cmd.Process.Pid); err != nil {
				return fmt.Errorf("join the user namespace: %w", err)
			}
			st, err := os.Stat(namespaceFile(cmd.Process.Pid))
			if err == nil && os.SameFile(st, want) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("join the user namespace: it took more than %v", joinLimit)
			}
		}
	})
}

const joinLimit = time.Minute

// The calls of ioctl_ns(2).
const (
	nsGetParent   = 0xb702
	nsGetOwnerUID = 0xb704
)

func namespaceFile(pid int) string { return fmt.Sprintf("/proc/%d/ns/user", pid) }

// namespaceOf opens the user namespace below this process's own that a process is in,
// itself or in one below. This user has made it, and so may enter it.
func namespaceOf(p Process) (ns *os.File, err error) {
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return nil, err
	}
	at, err := os.Open(namespaceFile(p.PID))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = at.Close()
		}
	}()
	// The process still has its number, so the opened namespace is its own.
	if start, err := processStart(p.PID); err != nil || start != strconv.FormatUint(p.Start, 10) {
		return nil, os.ErrProcessDone
	}
	for {
		fd, err := unix.IoctlRetInt(int(at.Fd()), nsGetParent)
		if err != nil { // it is this process's own namespace, or not below it
			return nil, os.NewSyscallError("NS_GET_PARENT", err)
		}
		parent := os.NewFile(uintptr(fd), "user namespace")
		if st, err := parent.Stat(); err != nil || os.SameFile(st, own) {
			if err == nil {
				err = ownedByUser(at)
			}
			_ = parent.Close()
			return at, err
		}
		_ = at.Close()
		at = parent
	}
}

// ownedByUser returns an error for a user namespace that another user has made.
func ownedByUser(ns *os.File) error {
	owner, err := unix.IoctlGetUint32(int(ns.Fd()), nsGetOwnerUID)
	if err != nil {
		return os.NewSyscallError("NS_GET_OWNER_UID", err)
	}
	if int(owner) != os.Geteuid() {
		return fmt.Errorf("user %d has made the namespace: %w", owner, os.ErrPermission)
	}
	return nil
}
