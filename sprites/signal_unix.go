//go:build unix

package sprites

import (
	"os"
	"syscall"
)

var systemSignals = map[os.Signal]Signal{
	syscall.SIGHUP:  SIGHUP,
	syscall.SIGINT:  SIGINT,
	syscall.SIGKILL: SIGKILL,
	syscall.SIGQUIT: SIGQUIT,
	syscall.SIGTERM: SIGTERM,
	syscall.SIGUSR1: SIGUSR1,
	syscall.SIGUSR2: SIGUSR2,
}
