package userns

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrNoNewPrivileges says why newuidmap refuses: it has no rights of its own in this process.
var ErrNoNewPrivileges = errors.New("this process may get no new privileges (no_new_privs), which newuidmap needs; start the container without --security-opt no-new-privileges (a unit: NoNewPrivileges=no), or run the server as root")

// noNewPrivileges reports whether a program that this process starts gets none by its file, such
// as those of newuidmap.
func noNewPrivileges() bool {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && set == 1
}
