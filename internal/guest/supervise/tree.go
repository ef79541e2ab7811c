package supervise

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/proctree"
)

// killLimit bounds the end of an agent's processes. It is longer than a busy machine may hold up
// one of them, or this process.
const killLimit = 30 * time.Second

// killDescendants ends every process below this one, and collects them. Call it while no child
// is waited for elsewhere. If a process forks as fast as it is killed, killDescendants goes on
// until killLimit.
func killDescendants() {
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); {
		pids := proctree.Below(os.Getpid())
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || (err != nil && !errors.Is(err, syscall.EINTR)) {
				break
			}
		}
		// The killed ones' children become ours as they end.
		<-time.After(2 * time.Millisecond)
	}
}

// maxEnviron bounds what is read of a process's environment.
const maxEnviron = 4 << 20

// killMarked kills every other process whose environment holds mark (KEY=VALUE). These are
// left by a supervisor that died, and are no longer descendants of ours. killMarked gives up
// after killLimit.
func killMarked(mark string) {
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); {
		found := false
		for _, pid := range proctree.All() {
			if pid != os.Getpid() && marked(pid, mark) {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
		<-time.After(2 * time.Millisecond)
	}
}

// marked reports whether a process's environment holds mark. The environment of a zombie, or
// of another user's process, is empty.
func marked(pid int, mark string) bool {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	defer f.Close()
	env, _ := io.ReadAll(io.LimitReader(f, maxEnviron)) // it may have just ended
	return slices.Contains(strings.Split(string(env), "\x00"), mark)
}

// reapOrphans collects children that were left to this process and have ended.
// The agent itself is waited for elsewhere.
func reapOrphans(agent int) {
	for {
		var info unix.Siginfo
		// WNOWAIT only looks: if this took the agent's status, the wait for the agent would
		// miss it.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != nil || info.Signo == 0 {
			return
		}
		pid := siginfoPid(&info)
		if pid == 0 || pid == agent {
			return
		}
		if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != nil {
			return
		}
	}
}
