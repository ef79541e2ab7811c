package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// endsContainer reports whether all other processes are likely to end soon after this one, as
// a container's do after its main process. That one is process 1, or a child of process 1 (an
// init such as tini), or, in a pod whose containers share their processes, has no parent here.
// A server that another command starts is none of these. A systemd that is asked at the
// server's end knows better (see machineEnds).
func endsContainer() bool {
	switch parent := os.Getppid(); {
	case os.Getpid() == 1:
		return true
	case parent > 1 || !cgroup.Process{}.InContainer():
		return false
	case os.Getenv(notifySocket) != "":
		_, err := os.Stat("/run/systemd/system") // sd_booted(3)
		return err != nil
	}
	return true
}

// serveBelowInit makes this process, the first of a container, the container's init. It starts
// the server as its only child, and passes signals on to it. It reaps each process that ends
// without a parent. It ends with the server, and with the server's exit code. A server that
// did this itself would take the ends of processes that os/exec waits for.
func serveBelowInit(suspend bool) error {
	if err := private.Process(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	child, err := syscall.ForkExec(self, append(os.Args[:len(os.Args):len(os.Args)], fmt.Sprintf("--suspend-at-end=%t", suspend)), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true}, // a terminal's Ctrl-C comes to this process alone, and so to the server once
	})
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	go func() {
		for s := range signals {
			switch s {
			case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE: // this process's own
			default:
				_ = unix.Kill(child, s.(syscall.Signal)) // it may have ended just now
			}
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the server: %w", err)
		case pid == child && status.Signaled():
			os.Exit(128 + int(status.Signal()))
		case pid == child:
			os.Exit(status.ExitStatus())
		}
	}
}
