package covetest

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals is for a process that was started to ignore signals, as by nohup. It gives
// them their default action in the programs that the process starts. A guest that is the first
// process of a sandbox does so itself.
func DefaultSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // still ignored here, but a child does not inherit a handler
		}
	}
}
