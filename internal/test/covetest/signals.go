package covetest

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals gives the signals that this process was started to ignore, as by nohup, their default
// action in the programs that it starts. A guest that is the first process of a sandbox does so itself.
func DefaultSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // still ignored here, but what has a handler is not inherited
		}
	}
}
