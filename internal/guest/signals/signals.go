// Package signals names signals, and leaves them to their default actions.
package signals

import (
	"cmp"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ours are the signals that this process has handlers for. They are for its end, for the Go
// runtime, for its own faults, and for writes to a pipe without a reader.
var ours = map[syscall.Signal]bool{
	syscall.SIGINT: true, syscall.SIGTERM: true, syscall.SIGQUIT: true,
	syscall.SIGURG: true, syscall.SIGPROF: true, syscall.SIGPIPE: true,
	syscall.SIGILL: true, syscall.SIGTRAP: true, syscall.SIGABRT: true, syscall.SIGBUS: true,
	syscall.SIGFPE: true, syscall.SIGSEGV: true, syscall.SIGSYS: true,
	syscall.SIGKILL: true, syscall.SIGSTOP: true, 32: true, 33: true, // nobody's to change
}

const lastSignal = 64

// firstRealTime is SIGRTMIN as C libraries have it: they keep the two below for themselves.
const firstRealTime = 34

// Leave gives all signals that the guest has no handler for their default action,
// which children inherit. (gVisor does not spare the first process of a sandbox: such a signal
// ends it, as KILL does. But only root in the sandbox can send one.) The Go runtime installs a
// handler for each signal, and takes it back in every child between fork and exec. It skips
// signals that it believes to be ignored. Otherwise that would be some 50 system calls for
// each command, in a sandbox where they are slow. (And a signal that really was ignored would
// stay so in every command.)
func Leave() error {
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		if ours[sig] {
			continue
		}
		signal.Ignore(sig)
		var byDefault struct {
			handler, flags, restorer uintptr
			mask                     uint64
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, unsafe.Sizeof(byDefault.mask), 0, 0)
		if errno != 0 {
			return fmt.Errorf("signal %d: %w", sig, errno)
		}
	}
	return nil
}

// Parse reads a signal's name, with or without SIG and in any case, or its
// number.
func Parse(text string) (syscall.Signal, error) {
	name := strings.ToUpper(strings.TrimSpace(text))
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	if from, ok := strings.CutPrefix(name, "SIGRTMIN"); ok {
		n, err := strconv.Atoi(cmp.Or(strings.TrimPrefix(from, "+"), "0"))
		if sig := firstRealTime + n; err == nil && n >= 0 && sig <= lastSignal {
			return syscall.Signal(sig), nil
		}
	}
	return 0, fmt.Errorf("no signal is called %q", text)
}

// Name returns a signal's name without SIG.
func Name(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(sig))
}
