package datafolder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
)

// Serves reports whether the process that server names is this user's, and holds the lock of the data
// folder. Another process may have the number by now, and another file the lock's inode.
func Serves(dir string, server Server) bool {
	pid := server.PID
	if pid < 1 || server.Started != "" && server.Started != private.StartOf(pid) {
		return false
	}
	var st unix.Stat_t
	if unix.Stat(filepath.Join(dir, LockFile), &st) != nil {
		return false
	}
	// The device is not compared: of some file systems stat gives another one.
	holds, err := lockListed(func(f []string) bool {
		return len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10))
	})
	return err == nil && holds && userOf(pid) == os.Geteuid()
}

// ending reports whether the server of a data folder was killed, and is not gone yet. Then it
// is dying, or its process is there but has lost the lock.
func ending(dir string) bool {
	server, err := Read(dir)
	if err != nil || server.Started == "" || private.Elsewhere(server.Processes) || copied(dir, server) {
		return false
	}
	return dying(server) || private.StartOf(server.PID) == server.Started && !Serves(dir, server)
}

// Dying returns the process of the server that a data folder names, if that was killed and is
// not gone yet; else 0. Its lock and its listener are free once the kernel is done with it.
// The kernel may have to write first.
func Dying(dir string) int {
	server, err := Read(dir)
	if err != nil || private.Elsewhere(server.Processes) || copied(dir, server) || !dying(server) {
		return 0
	}
	return server.PID
}

// copied reports whether dir is a copy of the folder that a server serves. The server's
// process and listener do not matter to a copy.
func copied(dir string, server Server) bool {
	if server.Data == "" {
		return false
	}
	original, err := os.Stat(server.Data)
	if err != nil {
		return false // it was moved
	}
	here, err := os.Stat(dir)
	return err == nil && !os.SameFile(original, here)
}

// Gone reports whether a data folder names a server that has ended completely.
func Gone(dir string) bool {
	server, err := Read(dir)
	return err == nil && server.PID > 0 && !private.Elsewhere(server.Processes) && !dying(server) && private.StartOf(server.PID) == ""
}

// The flags of a process, in its stat, that say that it ends (PF_EXITING, PF_SIGNALED).
const endingFlags = 0x4 | 0x400

// dying reports whether a server's process was killed and is not gone.
func dying(server Server) bool {
	if server.PID < 1 {
		return false
	}
	proc := fmt.Sprintf("/proc/%d", server.PID)
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return false
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the state on, the third field of proc(5)
	if len(f) < 20 || server.Started != "" && f[19] != server.Started {
		return false
	}
	if f[0] == "Z" || f[0] == "X" { // the first thread: others may be there
		threads, err := os.ReadDir(proc + "/task")
		return err == nil && len(threads) > 1
	}
	if flags, err := strconv.ParseUint(f[6], 10, 64); err == nil && flags&endingFlags != 0 {
		return true
	}
	status, err := os.ReadFile(proc + "/status")
	return err == nil && killPends(status)
}

// killPends reports whether SIGKILL is among the signals that a process's status says are pending.
func killPends(status []byte) bool {
	for line := range bytes.Lines(status) {
		f := strings.Fields(string(line))
		if len(f) != 2 || f[0] != "SigPnd:" && f[0] != "ShdPnd:" {
			continue
		}
		if pending, err := strconv.ParseUint(f[1], 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// Listener is the inode of the socket that listens at an address of this machine; empty: there
// is none, or the kernel does not say.
func Listener(addr string) string {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return ""
	}
	name := "/proc/net/tcp"
	if at.Addr().Is6() {
		name = "/proc/net/tcp6"
	}
	list, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	ip, local := at.Addr().AsSlice(), ""
	for ; len(ip) > 0; ip = ip[4:] { // words in the machine's own order
		local += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip))
	}
	local += fmt.Sprintf(":%04X", at.Port())
	const listening = "0A"
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == local && f[3] == listening {
			return f[9]
		}
	}
	return ""
}

// listens reports whether the socket at an address is that of a data folder's last server, and
// that server does not serve any more. Other processes may still have the socket for a moment.
func listens(dir, addr string) bool {
	server, err := Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		server, err = Last(dir)
	}
	if err != nil || server.Listener == "" || private.Elsewhere(server.Processes) || copied(dir, server) || Serves(dir, server) && !dying(server) {
		return false
	}
	return Listener(addr) == server.Listener
}

// Locked reports whether some process holds the flock of a file. It takes no lock itself. If
// the kernel does not tell, it says yes.
func Locked(name string) bool {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return false
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	held, err := lockListed(func(f []string) bool { return slices.Contains(f, want) })
	return held || err != nil
}

// StartsHere reports whether a process of this container holds a lock. That is a server that
// has not announced itself yet.
func StartsHere(lock *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(lock.Fd()), &st) != nil {
		return false
	}
	held, err := lockListed(func(f []string) bool {
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10)) {
			return false
		}
		status, err := os.ReadFile("/proc/" + f[4] + "/status")
		return err == nil && oneNumber().Match(status)
	})
	return err == nil && held
}

// oneNumber matches the status of a process that has no other number in a namespace below.
var oneNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^NSpid:\s+\d+$`) })

// lockListed reports whether the kernel's list of locks has one that is wanted, by the
// fields of its line. The kernel gives the list page by page. If other locks come and go
// between two pages, it leaves out locks that hold all the time, so lockListed reads it again.
func lockListed(wanted func(fields []string) bool) (bool, error) {
	const reads = 10 // beside a hundred locks that change all the time, 1 in 300 fails
	for range reads {
		list, err := os.ReadFile("/proc/locks")
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(list)) {
			if wanted(strings.Fields(line)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// userOf returns the user of a process. It is -1 if there is no such process, or if its real,
// effective and saved users differ, as those of a set-user-ID program do.
func userOf(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "Uid:" && f[1] == f[2] && f[2] == f[3] {
			if uid, err := strconv.Atoi(f[1]); err == nil {
				return uid
			}
		}
	}
	return -1
}
