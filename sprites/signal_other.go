//go:build !unix

package sprites

import (
	"os"
	"syscall"
)

var systemSignals = map[os.Signal]Signal{
	os.Interrupt:    SIGINT,
	os.Kill:         SIGKILL,
	syscall.SIGTERM: SIGTERM,
}
