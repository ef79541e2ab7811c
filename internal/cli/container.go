package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// A firstProcess describes process 1 of a container.
type firstProcess struct {
	name    string // of its program
	isShell bool
	traps   bool // it does something of its own at TERM
}

// shells are the names of programs that run an entrypoint's script.
var shells = []string{"sh", "ash", "bash", "busybox", "dash", "ksh", "mksh", "zsh"}

// starterOf finds process 1 of this container if it has started the server, and may end after it.
// The server is then its child, and in its session. A server that a command has started has a
// session of its own. If process 1 did not start the server, or is it, starterOf reports false.
func starterOf(pid int) (firstProcess, bool) {
	if pid <= 1 || !(cgroup.Process{PID: pid}).InContainer() || parentOf("/proc", pid) != 1 {
		return firstProcess{}, false
	}
	session, err := unix.Getsid(1)
	own, ownErr := unix.Getsid(pid)
	if err != nil || ownErr != nil || session != own {
		return firstProcess{}, false
	}
	return readFirst("/proc"), true
}

// readFirst reads what a proc file system says of process 1.
func readFirst(proc string) firstProcess {
	p := firstProcess{name: "process 1"}
	if name, err := datafolder.ReadSmall(filepath.Join(proc, "1", "comm")); err == nil && name != "" {
		p.name = name
	}
	program := p.name
	if exe, err := os.Readlink(filepath.Join(proc, "1", "exe")); err == nil {
		program = filepath.Base(exe)
	}
	p.isShell = slices.Contains(shells, program)
	caught, err := strconv.ParseUint(statusField(proc, "1", "SigCgt"), 16, 64)
	p.traps = err == nil && caught&(1<<(unix.SIGTERM-1)) != 0
	return p
}

// statusField is a field of a process's status; empty: it has none.
func statusField(proc, pid, name string) string {
	text, err := datafolder.ReadSmall(filepath.Join(proc, pid, "status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// parentOf is the number of a process's parent; 0: that is not known here.
func parentOf(proc string, pid int) int {
	n, err := strconv.Atoi(statusField(proc, strconv.Itoa(pid), "PPid"))
	if err != nil {
		return 0
	}
	return n
}

// starter warns of a container whose first process is a shell that has started the server and
// passes no TERM on to it. It reports false if there is nothing to say.
func starter(data string) (check, bool) {
	server, err := datafolder.Read(data)
	if err != nil || !datafolder.Serves(data, server) {
		return check{}, false
	}
	p, is := starterOf(server.PID)
	if !is || !p.isShell || p.traps {
		return check{}, false
	}
	return check{"container", levelWarn,
		fmt.Sprintf("process 1 of this container is a shell (%s), which has started the server and does not pass TERM on: when the container is stopped, all is killed, and the programs in sprites are lost", p.name),
		"write exec before cove serve in that script; or start the container with cove serve as its command; or let the script pass TERM on: trap 'kill -TERM $!' TERM"}, true
}

// endsWith says how a container goes on without its server, which process 1 has started.
func (p firstProcess) endsWith() string {
	return fmt.Sprintf("The server was started by this container's first process (%s). If that process ends after the server, the container ends, and so does this command. Sprites then go on from their memory on disk when the server starts again.", p.name)
}

// sandboxesRun reports whether a data folder has a sandbox that a shim looks after. A shim
// without a record has cleared its sandbox away, and is about to end.
func sandboxesRun(data string) bool {
	records, _ := filepath.Glob(filepath.Join(data, "run", "*", "sandbox.json")) // the pattern is right, or data has none
	return slices.ContainsFunc(records, func(record string) bool {
		return datafolder.Locked(filepath.Join(filepath.Dir(record), "shim.lock"))
	})
}
