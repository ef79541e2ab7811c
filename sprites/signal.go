package sprites

import (
	"fmt"
	"os"
	"strings"
)

// Signal is a signal by its name, with or without "SIG", in any case. It is an
// os.Signal, and independent of this machine's numbers.
type Signal string

// The signals that every server takes.
const (
	SIGHUP  Signal = "HUP"
	SIGINT  Signal = "INT"
	SIGKILL Signal = "KILL"
	SIGQUIT Signal = "QUIT"
	SIGTERM Signal = "TERM"
	SIGUSR1 Signal = "USR1"
	SIGUSR2 Signal = "USR2"
)

// signalByNumber has Linux's numbers, as exit codes carry them.
var signalByNumber = map[int]Signal{
	1: SIGHUP, 2: SIGINT, 3: SIGQUIT, 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: SIGKILL, 10: SIGUSR1,
	11: "SEGV", 12: SIGUSR2, 13: "PIPE", 14: "ALRM", 15: SIGTERM, 16: "STKFLT", 24: "XCPU", 25: "XFSZ", 31: "SYS",
}

// Signal makes it an os.Signal.
func (Signal) Signal() {}

// String is the name with "SIG" in front.
func (s Signal) String() string { return "SIG" + string(s.normal()) }

func (s Signal) normal() Signal {
	return Signal(strings.TrimPrefix(strings.ToUpper(string(s)), "SIG"))
}

// signalName is the protocol's name of sig: of a Signal, os.Interrupt, os.Kill,
// or a syscall.Signal that the protocol knows.
func signalName(sig os.Signal) (Signal, error) {
	if s, ok := sig.(Signal); ok && s != "" {
		return s.normal(), nil
	}
	if s, ok := systemSignals[sig]; ok {
		return s, nil
	}
	return "", fmt.Errorf("signal %v can't be sent to a sprite", sig)
}
